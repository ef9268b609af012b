// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * What the kernel's TCP calls: on each ACK, at a flow's start and end, and when its state changes.
 *
 * A congestion control with `cong_control` has all of the window and the pacing rate to itself: the kernel then neither
 * reduces the window while losses are repaired (PRR) nor keeps sk_pacing_rate, by which it sizes its bursts. Both are done
 * here, in the same way as by the BPF datapath (datapath-shims/ebpf), which measures the same words.
 */
#include <linux/inet_diag.h>
#include <linux/module.h>

#include "module.h"
#include "native.h"

#define PACING_SS_PERCENT 200
#define PACING_CA_PERCENT 120
/* Rate above which the stack's own pacing is off, bytes per second: a timer for each burst costs a third of the throughput. */
#define UNPACED_ABOVE 1250000000ull
/* A flow that is slower, and whose queue is shorter, sends segments one by one: behind room for one, half of each pair is lost. */
#define PAIRED_BYTES_PER_S 3000000ul
#define PAIRED_QUEUE_SEGMENTS 4

static struct ccplane_tcp_flow *flow_of(const struct sock *sk)
{
	struct ccplane_tcp_flow *flow = *(struct ccplane_tcp_flow **)inet_csk_ca(sk);

	return flow && flow->sk == sk ? flow : NULL;
}

static u64 nonnegative(s64 v)
{
	return v > 0 ? (u64)v : 0;
}

static void save_counters(const struct tcp_sock *tp, struct ccplane_tcp_flow *flow)
{
	flow->last_bytes_acked = tp->bytes_acked;
	flow->last_sacked = tp->sacked_out;
	flow->last_ce = tp->delivered_ce;
	flow->last_lost = tp->lost;
	flow->timeout = false;
}

static void take_sample(const struct sock *sk, struct ccplane_tcp_flow *flow)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct ccplane_sample *to = &flow->sample;

	WRITE_ONCE(to->snd_cwnd, tp->snd_cwnd);
	WRITE_ONCE(to->snd_ssthresh, tp->snd_ssthresh);
	WRITE_ONCE(to->mss, tp->mss_cache);
	WRITE_ONCE(to->srtt_us, tp->srtt_us >> 3);
	WRITE_ONCE(to->min_rtt_us, tcp_min_rtt(tp));
	WRITE_ONCE(to->packets_out, tp->packets_out);
	WRITE_ONCE(to->pacing_rate, sk->sk_pacing_rate);
	WRITE_ONCE(to->bytes_acked, tp->bytes_acked);
	WRITE_ONCE(to->delivered, tp->delivered);
	WRITE_ONCE(to->lost, tp->lost);
	WRITE_ONCE(to->at_us, tp->tcp_mstamp);
}

/* The program's window is the flow's present one. */
static void take_window(const struct tcp_sock *tp, struct ccplane_tcp_flow *flow)
{
	flow->state.cells[CCPLANE_CELL_CWND] = (s64)tp->snd_cwnd * tp->mss_cache;
	flow->undo_cwnd = 0;
}

/* What was delivered since the kernel reduces the window (from TCP_CA_CWR on, before TCP_CA_LOSS). */
static u32 count_delivered(const struct tcp_sock *tp, const struct rate_sample *rs, struct ccplane_tcp_flow *flow)
{
	u32 delivered = rs->acked_sacked;

	if (!flow)
		return delivered;
	if (tp->prr_out)
		delivered += flow->prr_delivered;
	flow->prr_delivered = delivered;
	return delivered;
}

/*
 * The limit on packets in flight after this ACK while losses are repaired, from the state `from` on, towards this window.
 *
 * Recovery: proportional rate reduction (RFC 6937), towards `cwnd` instead of snd_ssthresh. Loss: twice what was delivered, as
 * in slow start.
 */
static u32 conserve(const struct sock *sk, const struct rate_sample *rs, struct ccplane_tcp_flow *flow, u8 from, u32 cwnd)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u8 state = inet_csk(sk)->icsk_ca_state;
	u32 in_flight = tcp_packets_in_flight(tp), acked = rs->acked_sacked, delivered, prior, limit;
	s32 room;

	if (state < from)
		return cwnd;
	if (state == TCP_CA_Loss)
		return max(min(cwnd, in_flight + max(2 * acked, 1u)), 1u);
	delivered = count_delivered(tp, rs, flow);
	if (in_flight <= cwnd) {
		/* What was delivered and not yet answered; one more if the ACK advanced and found nothing new lost. */
		room = max_t(s32, acked, (s32)(delivered - tp->prr_out));
		if (flow && tp->bytes_acked != flow->last_bytes_acked && tp->lost == flow->last_lost)
			room++;
		limit = min(cwnd, in_flight + room);
	} else {
		/* The share of what was delivered that the window is of the one before. */
		prior = max(tp->prior_cwnd, 1u);
		limit = (u32)div_u64((u64)cwnd * delivered + prior - 1, prior);
		limit = in_flight + (limit > tp->prr_out ? limit - tp->prr_out : 0);
	}
	/* The retransmission that starts the recovery always leaves. */
	if (!tp->prr_out && limit <= in_flight)
		limit = in_flight + 1;
	return max(limit, 1u);
}

/* tcp_update_pacing_rate, which the kernel leaves to a cong_control. */
static void default_pacing(struct sock *sk, u32 cwnd)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 rate = (u64)tp->mss_cache * (USEC_PER_SEC / 100 << 3);

	rate *= cwnd < tp->snd_ssthresh / 2 ? PACING_SS_PERCENT : PACING_CA_PERCENT;
	rate *= max(cwnd, tp->packets_out);
	if (tp->srtt_us)
		rate = div_u64(rate, tp->srtt_us);
	WRITE_ONCE(sk->sk_pacing_rate, min_t(u64, rate, READ_ONCE(sk->sk_max_pacing_rate)));
}

/* A paced flow gets a window that it can use without pacing: what it has in flight. */
static void unpace(struct sock *sk, const struct rate_sample *rs, const struct ccplane_tcp_flow *flow)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 cwnd = max_t(u32, tcp_packets_in_flight(tp) + rs->acked_sacked, TCP_INIT_CWND);

	if (ccplane_flow_rate(&flow->state) && cwnd < tp->snd_cwnd) {
		WRITE_ONCE(tp->snd_cwnd, cwnd);
		tp->snd_ssthresh = cwnd;
	}
}

static void set_mode(struct ccplane_tcp_flow *flow, enum ccplane_mode mode)
{
	if (flow->mode == CCPLANE_BY_PROGRAM && mode != CCPLANE_BY_PROGRAM)
		atomic64_inc(&ccplane_counters.natives);
	WRITE_ONCE(flow->mode, mode);
}

static void run_native(struct sock *sk, const struct rate_sample *rs, struct ccplane_tcp_flow *flow)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u8 state = inet_csk(sk)->icsk_ca_state;

	if (state >= TCP_CA_CWR && state != TCP_CA_Loss)
		WRITE_ONCE(tp->snd_cwnd, conserve(sk, rs, flow, TCP_CA_CWR, tp->snd_ssthresh));
	else if (flow && ccplane_native_cubic)
		ccplane_cubic_avoid(sk, &flow->cubic, rs->acked_sacked);
	else
		tcp_reno_cong_avoid(sk, 0, rs->acked_sacked);
	default_pacing(sk, tp->snd_cwnd);
	if (flow)
		save_counters(tp, flow);
}

/* rs->delivered packets in so many microseconds, bytes per second. */
static s64 rate_of(const struct tcp_sock *tp, const struct rate_sample *rs, long interval_us)
{
	if (rs->delivered <= 0 || interval_us <= 0)
		return 0;
	return (s64)div64_u64((u64)rs->delivered * tp->mss_cache * USEC_PER_SEC, (u64)interval_us);
}

static void measure(const struct sock *sk, const struct rate_sample *rs, const struct ccplane_tcp_flow *flow, u16 wanted,
		    struct ccplane_prims *prims)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 mss = tp->mss_cache, in_flight = tcp_packets_in_flight(tp);
	u64 sacked = nonnegative((s64)tp->sacked_out - flow->last_sacked);
	u32 marked = tp->delivered_ce - flow->last_ce;
	s64 *v = prims->value;

	v[CCPLANE_ACK_NOW] = (s64)tp->tcp_mstamp;
	v[CCPLANE_ACK_BYTES_ACKED] = (s64)(tp->bytes_acked - flow->last_bytes_acked);
	v[CCPLANE_ACK_BYTES_MISORDERED] = (s64)(sacked * mss);
	v[CCPLANE_ACK_PACKETS_MISORDERED] = (s64)sacked;
	v[CCPLANE_ACK_PACKETS_ACKED] = (s64)nonnegative((s64)rs->acked_sacked - (s64)sacked);
	v[CCPLANE_ACK_ECN_PACKETS] = marked;
	v[CCPLANE_ACK_ECN_BYTES] = (s64)marked * mss;
	/* rs->losses would leave out what a timer (RTO, RACK) marked between two ACKs. */
	v[CCPLANE_ACK_LOST_PKTS_SAMPLE] = (u32)(tp->lost - flow->last_lost);
	v[CCPLANE_FLOW_PACKETS_IN_FLIGHT] = in_flight;
	v[CCPLANE_FLOW_BYTES_IN_FLIGHT] = (s64)in_flight * mss;
	v[CCPLANE_FLOW_BYTES_PENDING] = (u32)(tp->write_seq - tp->snd_una);
	v[CCPLANE_FLOW_RTT_SAMPLE_US] = rs->rtt_us;
	v[CCPLANE_FLOW_WAS_TIMEOUT] = flow->timeout;
	/* The two that take a division. */
	v[CCPLANE_FLOW_RATE_INCOMING] = wanted & BIT(CCPLANE_FLOW_RATE_INCOMING) ? rate_of(tp, rs, rs->interval_us) : 0;
	v[CCPLANE_FLOW_RATE_OUTGOING] =
		wanted & BIT(CCPLANE_FLOW_RATE_OUTGOING) ? rate_of(tp, rs, (long)rs->snd_interval_us) : 0;
}

static void pace(struct sock *sk, u64 rate)
{
	u64 most = READ_ONCE(sk->sk_max_pacing_rate);

	rate = min(rate, most);
	WRITE_ONCE(sk->sk_pacing_rate, rate);
	if (most != ~0UL || rate <= UNPACED_ABOVE)
		cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
	else
		cmpxchg(&sk->sk_pacing_status, SK_PACING_NEEDED, SK_PACING_NONE);
}

/* Applies the program's window and rate. */
static void apply(struct sock *sk, const struct rate_sample *rs, struct ccplane_tcp_flow *flow)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u64 bytes = (u64)ccplane_flow_cwnd(&flow->state), rate = (u64)ccplane_flow_rate(&flow->state);
	u32 cwnd = (u32)min_t(u64, div_u64(bytes, max(tp->mss_cache, 1u)), tp->snd_cwnd_clamp);
	u8 state = inet_csk(sk)->icsk_ca_state;

	cwnd = max(cwnd, 1u);
	/*
	 * A paced flow sends no burst when its window is kept through a loss: recovery leaves the window alone, and only counts, for
	 * the native algorithm if the program gives up in the middle.
	 */
	if (state == TCP_CA_Loss || (state >= TCP_CA_Recovery && !rate))
		cwnd = conserve(sk, rs, flow, TCP_CA_Recovery, cwnd);
	else if (state >= TCP_CA_CWR)
		count_delivered(tp, rs, flow);
	WRITE_ONCE(tp->snd_cwnd, cwnd);
	if (rate)
		pace(sk, rate);
	else
		default_pacing(sk, cwnd);
	save_counters(tp, flow);
}

/* Runs the flow's program on an ACK. Under RCU. */
static void run_program(struct sock *sk, const struct rate_sample *rs, struct ccplane_tcp_flow *flow,
			struct ccplane_agent *agent)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct ccplane_program *program = flow->program;
	const struct ccplane_slots_rcu *slots = rcu_dereference(program->policies->now);
	struct ccplane_prims prims;
	u32 result;

	measure(sk, rs, flow, program->prog.prims, &prims);
	ccplane_flow_follow_mss(&program->prog, &flow->state, &flow->told_mss, tp->mss_cache);
	result = ccplane_prog_invoke(&program->prog, &flow->state, &prims, slots ? &slots->slots : NULL, flow->id);
	apply(sk, rs, flow);
	if (result & CCPLANE_REPORTED) {
		WRITE_ONCE(flow->reports, flow->reports + 1);
		/* A program of an agent that has gone says nothing to the next one, whose programs have the same uids. */
		if (agent && agent->number == program->agent)
			ccplane_tell_report(agent, flow, tp->tcp_mstamp, !(result & CCPLANE_ASKED));
		ccplane_flow_reported(&program->prog, &flow->state);
	}
	if (result & CCPLANE_LEFT) {
		WRITE_ONCE(flow->program, NULL);
		set_mode(flow, CCPLANE_BY_POLICY);
		unpace(sk, rs, flow);
		ccplane_program_put(program);
	}
}

/* Whether the agent's heartbeat is too old; without an agent, whether the time that it had left has passed. */
static bool is_silent(const struct ccplane_tcp_flow *flow, const struct ccplane_agent *agent, u64 now_us)
{
	if (agent)
		return now_us > READ_ONCE(agent->beat_us) + READ_ONCE(agent->timeout_us);
	return now_us > READ_ONCE(flow->orphan_until_us);
}

/* Whether a staged change may be taken: fields wait while a policy's lack of an answer keeps the program from running. */
static bool takes_staged(const struct ccplane_tcp_flow *flow)
{
	return flow->mode != CCPLANE_BY_POLICY || READ_ONCE(flow->staged.start) || READ_ONCE(flow->staged.release);
}

static void on_ack(struct sock *sk, const struct rate_sample *rs)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct ccplane_tcp_flow *flow = flow_of(sk);
	struct ccplane_agent *agent;
	u64 now_us = tp->tcp_mstamp;
	bool silent, claimed;

	if (!flow) {
		run_native(sk, rs, NULL);
		return;
	}
	if (now_us >= flow->sample.at_us + ccplane_sample_us)
		take_sample(sk, flow);
	rcu_read_lock();
	agent = rcu_dereference(flow->agent);
	silent = is_silent(flow, agent, now_us);
	/* Under a silent agent changes wait, as programs do. */
	claimed = READ_ONCE(flow->is_staged) && !silent && takes_staged(flow) && ccplane_flow_claim(flow);
	if (flow->program && !silent) {
		/* What this ACK brought is the program's first sample: the native algorithm has recorded what came before. */
		if (flow->mode != CCPLANE_BY_PROGRAM)
			take_window(tp, flow);
		set_mode(flow, CCPLANE_BY_PROGRAM);
		if (claimed)
			ccplane_flow_apply_claimed(flow, now_us);
		run_program(sk, rs, flow, agent);
	} else {
		enum ccplane_mode before = flow->mode;

		if (flow->program)
			set_mode(flow, CCPLANE_BY_SILENCE);
		else if (before != CCPLANE_BY_POLICY)
			set_mode(flow, CCPLANE_BY_NONE);
		if (before == CCPLANE_BY_PROGRAM) {
			unpace(sk, rs, flow);
			ccplane_cubic_reset(&flow->cubic);
		}
		run_native(sk, rs, flow);
	}
	if (claimed)
		ccplane_flow_end_claim(flow);
	rcu_read_unlock();
}

#ifdef CCPLANE_CONG_CONTROL_HAS_ACK
static void on_cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
#else
static void on_cong_control(struct sock *sk, const struct rate_sample *rs)
#endif
{
	on_ack(sk, rs);
}

static void on_init(struct sock *sk)
{
	struct ccplane_tcp_flow **at = inet_csk_ca(sk), *flow;
	const struct tcp_sock *tp = tcp_sk(sk);
	const struct tcp_congestion_ops *ops = inet_csk(sk)->icsk_ca_ops;

	BUILD_BUG_ON(sizeof(*at) > sizeof_field(struct inet_connection_sock, icsk_ca_priv));
	*at = NULL;
	/* All names are the module's, which a flow keeps. */
	flow = ccplane_flow_open(sk, ops != &ccplane_tcp ? ops->name : NULL, ccplane_now_us());
	if (!flow)
		return;
	save_counters(tp, flow);
	take_sample(sk, flow);
	*at = flow;
}

static void on_release(struct sock *sk)
{
	struct ccplane_tcp_flow *flow = flow_of(sk);

	*(struct ccplane_tcp_flow **)inet_csk_ca(sk) = NULL;
	if (flow)
		ccplane_flow_close(flow);
}

/* A loss episode begins: the window that the program has before it learns of the loss is kept. */
static u32 on_ssthresh(struct sock *sk)
{
	struct ccplane_tcp_flow *flow = flow_of(sk);

	if (!flow)
		return tcp_reno_ssthresh(sk);
	flow->undo_cwnd = ccplane_flow_cwnd(&flow->state);
	return ccplane_native_cubic && flow->mode != CCPLANE_BY_PROGRAM ? ccplane_cubic_ssthresh(sk, &flow->cubic) :
									 tcp_reno_ssthresh(sk);
}

/*
 * The episode was spurious: packets were late, not lost (RFC 3522, RFC 3708, RFC 5682). The program gets its window back, unless
 * the agent has set another since, and is not told of losses that it has not been told of yet.
 */
static u32 on_undo_cwnd(struct sock *sk)
{
	struct ccplane_tcp_flow *flow = flow_of(sk);

	if (flow) {
		if (flow->undo_cwnd > ccplane_flow_cwnd(&flow->state))
			flow->state.cells[CCPLANE_CELL_CWND] = flow->undo_cwnd;
		flow->last_lost = tcp_sk(sk)->lost;
		flow->timeout = false;
	}
	return tcp_reno_undo_cwnd(sk);
}

static void on_set_state(struct sock *sk, u8 state)
{
	struct ccplane_tcp_flow *flow = flow_of(sk);

	if (!flow || state != TCP_CA_Loss)
		return;
	flow->timeout = true;
	ccplane_cubic_reset(&flow->cubic);
}

#ifdef CCPLANE_HAS_MIN_TSO_SEGS
/* The least segments of a burst (tcp_tso_autosize): two, as the kernel's default, where the flow has a queue of some segments. */
static u32 on_min_tso_segs(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	unsigned long rate = READ_ONCE(sk->sk_pacing_rate);
	u32 srtt_us = tp->srtt_us >> 3, min_rtt_us = tcp_min_rtt(tp);
	u64 queued;

	if (rate >= PAIRED_BYTES_PER_S)
		return 2;
	if (srtt_us <= min_rtt_us)
		return 1;
	queued = div_u64((u64)(srtt_us - min_rtt_us) * rate, USEC_PER_SEC);
	return queued < (u64)tp->mss_cache * PAIRED_QUEUE_SEGMENTS ? 1 : 2;
}
#endif

/* For sock_diag: whether a program decides, its reports, and RTTs, in the record of Vegas. */
static size_t on_get_info(struct sock *sk, u32 ext, int *attr, union tcp_cc_info *info)
{
	const struct ccplane_tcp_flow *flow = flow_of(sk);

	if (!flow || !(ext & (1 << (INET_DIAG_VEGASINFO - 1))))
		return 0;
	info->vegas.tcpv_enabled = READ_ONCE(flow->mode) == CCPLANE_BY_PROGRAM;
	info->vegas.tcpv_rttcnt = READ_ONCE(flow->reports);
	info->vegas.tcpv_rtt = READ_ONCE(flow->sample.srtt_us);
	info->vegas.tcpv_minrtt = READ_ONCE(flow->sample.min_rtt_us);
	*attr = INET_DIAG_VEGASINFO;
	return sizeof(struct tcpvegas_info);
}

struct tcp_congestion_ops ccplane_tcp __read_mostly = {
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = on_init,
	.release = on_release,
	.cong_control = on_cong_control,
	.ssthresh = on_ssthresh,
	.undo_cwnd = on_undo_cwnd,
	.set_state = on_set_state,
#ifdef CCPLANE_HAS_MIN_TSO_SEGS
	.min_tso_segs = on_min_tso_segs,
#endif
	.get_info = on_get_info,
	.owner = THIS_MODULE,
};
