// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* CUBIC (RFC 9438) in integers: windows in packets, time in milliseconds, C = 0.4, beta = 0.7. */
#include "native.h"

/* K^3 = packets / C, in ms^3: 10^9 / 0.4. */
#define CUBE_MS_PER_PACKET 2500000000ull
/* Time from the plateau beyond which the curve is cut off, so that its cube fits: 17 minutes. */
#define MAX_FROM_PLATEAU_MS (1u << 20)
#define MAX_PACKETS (1u << 30)

static u32 cube_root(u64 x)
{
	u64 root = 0, try;
	int bit;

	for (bit = 20; bit >= 0; bit--) {
		try = root | 1ull << bit;
		if (try * try * try <= x)
			root = try;
	}
	return (u32)root;
}

static void begin_epoch(struct ccplane_cubic *cubic, u32 cwnd, u64 now_us)
{
	u32 below = cubic->w_max > cwnd ? min(cubic->w_max - cwnd, MAX_PACKETS) : 0;

	cubic->epoch_us = now_us ? now_us : 1;
	cubic->origin = cwnd + below;
	cubic->k_ms = cube_root(below * CUBE_MS_PER_PACKET);
	cubic->reno = cwnd;
	cubic->reno_acked = 0;
}

/* The window on the curve at this time after the epoch. */
static u32 on_curve(const struct ccplane_cubic *cubic, u64 at_ms)
{
	u64 from = at_ms < cubic->k_ms ? cubic->k_ms - at_ms : at_ms - cubic->k_ms;
	u64 delta;

	from = min_t(u64, from, MAX_FROM_PLATEAU_MS);
	delta = min_t(u64, div64_u64(from * from * from, CUBE_MS_PER_PACKET), MAX_PACKETS);
	if (at_ms < cubic->k_ms)
		return cubic->origin > delta ? cubic->origin - (u32)delta : 1;
	return cubic->origin + (u32)delta;
}

/* The window that Reno would have by now (section 4.3): alpha = 3 (1 - beta) / (1 + beta) = 9 / 17, or 1 from w_max on. */
static u32 grow_reno(struct ccplane_cubic *cubic, u32 acked)
{
	u32 share = cubic->reno < cubic->w_max ? 9 : 17;

	cubic->reno_acked += min(acked, MAX_PACKETS >> 5) * share;
	while (cubic->reno_acked >= cubic->reno * 17ull) {
		cubic->reno_acked -= cubic->reno * 17;
		cubic->reno++;
	}
	return cubic->reno;
}

void ccplane_cubic_avoid(struct sock *sk, struct ccplane_cubic *cubic, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 cwnd, target;
	u64 at_ms;

	if (!tcp_is_cwnd_limited(sk))
		return;
	if (tcp_in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	cwnd = max(tp->snd_cwnd, 1u);
	if (!cubic->epoch_us)
		begin_epoch(cubic, cwnd, tp->tcp_mstamp);
	/* Where the curve is one round trip from now. */
	at_ms = div_u64(tp->tcp_mstamp - cubic->epoch_us + (tp->srtt_us >> 3), USEC_PER_MSEC);
	target = min(on_curve(cubic, at_ms), cwnd + cwnd / 2);
	target = max(target, grow_reno(cubic, acked));
	tcp_cong_avoid_ai(tp, target > cwnd ? max(cwnd / (target - cwnd), 1u) : 100 * min(cwnd, MAX_PACKETS / 100), acked);
}

u32 ccplane_cubic_ssthresh(struct sock *sk, struct ccplane_cubic *cubic)
{
	u32 cwnd = min(tcp_sk(sk)->snd_cwnd, MAX_PACKETS);

	/* Fast convergence: a flow that loses room makes more of it. */
	cubic->w_max = cwnd < cubic->w_max ? cwnd - cwnd * 3ull / 20 : cwnd;
	cubic->epoch_us = 0;
	return max_t(u32, (u32)(cwnd * 7ull / 10), 2);
}

void ccplane_cubic_reset(struct ccplane_cubic *cubic)
{
	memset(cubic, 0, sizeof(*cubic));
}
