// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* What goes to an agent, through its ring. What finds no room is counted, and told of when there is some. */
#include "module.h"

/* Bytes of the longest report, start or end, answer: on the stack. */
#define SHORT_BYTES (CCPLANE_HEADER_BYTES + 2 + 25 + 8 * CCPLANE_MAX_REGS)
/* Flows of one frame of a list; and the most bytes that one takes in it. */
#define LISTED 64
#define LISTED_BYTES 240
#define NO_SSTHRESH U32_MAX
#define MODE_HAS_POLICY 0x80
/* An image's name, in words at this offset. */
#define NAME_AT 80
#define NAME_WORDS 4

/* Writes a frame; true if it is in the ring. Under ring_lock. */
static bool write_frame(struct ccplane_agent *agent, const struct ccplane_out *out)
{
	int error = out->full ? -ENOBUFS : ccplane_ring_write(&agent->ring, out->bytes, out->len);

	if (error == -EPROTO)
		WRITE_ONCE(agent->corrupt, true);
	return !error;
}

/* Tells how many events were lost, if some were. Under ring_lock. */
static void tell_dropped(struct ccplane_agent *agent)
{
	u8 bytes[CCPLANE_HEADER_BYTES + 8];
	struct ccplane_out out = { .bytes = bytes, .room = sizeof(bytes) };
	size_t start;

	if (likely(!agent->dropped))
		return;
	start = ccplane_frame_start(&out, CCPLANE_DROPPED, 0);
	ccplane_put_u64(&out, agent->dropped);
	ccplane_frame_end(&out, start);
	if (write_frame(agent, &out))
		agent->dropped = 0;
}

static void wake(struct ccplane_agent *agent)
{
	/* One that has not mapped the ring cannot say that it sleeps. */
	if (!READ_ONCE(agent->mapped) || ccplane_ring_wakes(&agent->ring))
		wake_up_interruptible(&agent->wait);
}

/* Sends an event, or counts it. Under ring_lock. */
static void tell_event(struct ccplane_agent *agent, const struct ccplane_out *out)
{
	tell_dropped(agent);
	if (agent->dropped || !write_frame(agent, out)) {
		agent->dropped++;
		atomic64_inc(&ccplane_counters.dropped);
	}
}

bool ccplane_tell(struct ccplane_agent *agent, const struct ccplane_out *out)
{
	bool told;

	spin_lock_bh(&agent->ring_lock);
	told = write_frame(agent, out);
	spin_unlock_bh(&agent->ring_lock);
	wake(agent);
	return told;
}

size_t ccplane_say_hello(struct ccplane_agent *agent, const char *name)
{
	struct ccplane_out out = { .bytes = agent->frame, .room = CCPLANE_MAX_FRAME_BYTES };
	size_t start = ccplane_frame_start(&out, CCPLANE_HELLO, 0);

	ccplane_put_u8(&out, 0);	/* the oldest minor version */
	ccplane_put_u8(&out, CCPLANE_MINOR);
	ccplane_put_u8(&out, 1);	/* CLOCK_MONOTONIC */
	ccplane_put_u32(&out, 1 | 2 | 4);	/* policies, the full language, rings */
	ccplane_put_u64(&out, ccplane_now_us());
	ccplane_put_u32(&out, ccplane_max_programs);
	ccplane_put_u32(&out, ccplane_max_flows);
	ccplane_put_text(&out, "module");
	ccplane_put_text(&out, name);
	ccplane_put_u16(&out, 0);	/* slots: an agent defines its own */
	ccplane_frame_end(&out, start);
	return out.len;
}

void ccplane_tell_report(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow, u64 now_us, bool wakes)
{
	const struct ccplane_program *program = flow->program;
	const s64 *values = ccplane_flow_regs(&flow->state);
	u8 bytes[SHORT_BYTES];
	struct ccplane_out out = { .bytes = bytes, .room = sizeof(bytes) };
	size_t start = ccplane_frame_start(&out, CCPLANE_REPORTS, 0);
	unsigned int n;

	ccplane_put_u16(&out, 1);
	ccplane_put_u64(&out, flow->id);
	ccplane_put_u32(&out, program->uid);
	ccplane_put_u32(&out, flow->reports);
	ccplane_put_u64(&out, now_us);
	ccplane_put_u8(&out, program->prog.report_len);
	for (n = 0; n < program->prog.report_len; n++)
		ccplane_put_u64(&out, (u64)values[n]);
	ccplane_frame_end(&out, start);
	atomic64_inc(&ccplane_counters.reports);
	spin_lock_bh(&agent->ring_lock);
	tell_event(agent, &out);
	spin_unlock_bh(&agent->ring_lock);
	if (wakes)
		wake(agent);
}

static void put_end(struct ccplane_out *out, const struct ccplane_tcp_flow *flow, u16 port, const u8 *address)
{
	ccplane_put_u16(out, port);
	if (flow->family == AF_INET) {
		ccplane_put(out, address, 4);
		return;
	}
	ccplane_put(out, address, 16);
	ccplane_put_u64(out, 0);	/* flow information and scope */
}

static u32 min_rtt_of(const struct ccplane_tcp_flow *flow)
{
	u32 us = READ_ONCE(flow->sample.min_rtt_us);

	return us == U32_MAX ? 0 : us;
}

static void put_info(struct ccplane_out *out, const struct ccplane_tcp_flow *flow)
{
	ccplane_put_u32(out, flow->first_mss);
	ccplane_put_u64(out, (u64)flow->init_cwnd * flow->first_mss);
	ccplane_put_u8(out, flow->family == AF_INET ? 4 : 6);
	put_end(out, flow, flow->local_port, flow->local);
	put_end(out, flow, flow->remote_port, flow->remote);
	ccplane_put_u8(out, flow->cgroup != 0);
	if (flow->cgroup)
		ccplane_put_u64(out, flow->cgroup);
	ccplane_put_u32(out, min_rtt_of(flow));
}

static void encode_created(struct ccplane_out *out, const struct ccplane_tcp_flow *flow)
{
	size_t start;

	if (flow->requested) {
		start = ccplane_frame_start(out, CCPLANE_REQUESTED, 0);
		ccplane_put_u64(out, flow->id);
		ccplane_put_text(out, flow->requested);
		ccplane_frame_end(out, start);
	}
	start = ccplane_frame_start(out, CCPLANE_CREATED, 0);
	ccplane_put_u64(out, flow->id);
	put_info(out, flow);
	ccplane_frame_end(out, start);
}

static void encode_closed(struct ccplane_out *out, u64 id)
{
	size_t start = ccplane_frame_start(out, CCPLANE_CLOSED, 0);

	ccplane_put_u64(out, id);
	ccplane_frame_end(out, start);
}

/*
 * While a list of flows is under way no start or end goes out between its frames: the agent takes the list for that of one
 * moment. Starts are found in the table when it is over, ends are kept.
 */
void ccplane_tell_created(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow)
{
	u8 bytes[SHORT_BYTES];
	struct ccplane_out out = { .bytes = bytes, .room = sizeof(bytes) };

	encode_created(&out, flow);
	spin_lock_bh(&agent->ring_lock);
	if (!agent->listing.active)
		tell_event(agent, &out);
	spin_unlock_bh(&agent->ring_lock);
	wake(agent);
}

void ccplane_tell_closed(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow)
{
	struct ccplane_listing *listing = &agent->listing;
	u8 bytes[SHORT_BYTES];
	struct ccplane_out out = { .bytes = bytes, .room = sizeof(bytes) };

	encode_closed(&out, flow->id);
	spin_lock_bh(&agent->ring_lock);
	if (!listing->active)
		tell_event(agent, &out);
	else if (flow->id >> CCPLANE_INDEX_BITS <= listing->newest && listing->late < CCPLANE_MAX_LATE)
		listing->late_ids[listing->late++] = flow->id;
	else if (flow->id >> CCPLANE_INDEX_BITS <= listing->newest)
		agent->dropped++;
	spin_unlock_bh(&agent->ring_lock);
	wake(agent);
}

/* Who decides by now: a record learns of a silent agent, and of a program that waits, only at its flow's next ACK. */
static u8 mode_of(const struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow, u64 now_us)
{
	u8 mode = READ_ONCE(flow->mode);
	bool silent = now_us > agent->beat_us + agent->timeout_us;

	/* The cause is not the missing agent, unless a program that it has set waits. */
	if (mode == CCPLANE_BY_POLICY && !READ_ONCE(flow->staged.start))
		return mode;
	if (silent && (mode == CCPLANE_BY_PROGRAM || flow->set))
		return CCPLANE_BY_SILENCE;
	return mode;
}

static void put_policy(struct ccplane_out *out, const struct ccplane_flow_policy *policy)
{
	ccplane_put_u64(out, policy->noise);
	ccplane_put_u32(out, policy->uid);
	ccplane_put_u32(out, policy->buffer);
	ccplane_put_u32(out, policy->level);
	ccplane_put_u32(out, policy->level_uid);
	ccplane_put_u32(out, policy->penalty);
	ccplane_put_u32(out, policy->decisions);
	ccplane_put_u32(out, policy->saturated);
	ccplane_put_u32(out, policy->clipped);
	ccplane_put_u32(out, policy->collapsed);
	ccplane_put_u32(out, policy->trips);
}

/* A flow's statistics. Under table_lock. */
static void put_stats(struct ccplane_out *out, const struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow,
		      u64 now_us)
{
	const struct ccplane_sample *sample = &flow->sample;
	const struct ccplane_program *set = flow->set;
	bool asks = set && set->prog.slots;
	u32 ssthresh = READ_ONCE(sample->snd_ssthresh);

	ccplane_put_u64(out, flow->id);
	put_info(out, flow);
	ccplane_put_u8(out, mode_of(agent, flow, now_us) | (asks ? MODE_HAS_POLICY : 0));
	ccplane_put_u8(out, set != NULL);
	if (set)
		ccplane_put_u32(out, set->uid);
	ccplane_put_u32(out, READ_ONCE(sample->snd_cwnd));
	ccplane_put_u32(out, ssthresh == TCP_INFINITE_SSTHRESH ? NO_SSTHRESH : ssthresh);
	ccplane_put_u32(out, READ_ONCE(sample->mss));
	ccplane_put_u32(out, READ_ONCE(sample->srtt_us));
	ccplane_put_u32(out, min_rtt_of(flow));
	ccplane_put_u64(out, READ_ONCE(sample->pacing_rate));
	ccplane_put_u64(out, READ_ONCE(sample->bytes_acked));
	ccplane_put_u64(out, READ_ONCE(sample->delivered));
	ccplane_put_u64(out, READ_ONCE(sample->lost));
	ccplane_put_u32(out, READ_ONCE(sample->packets_out));
	ccplane_put_u64(out, READ_ONCE(flow->state.faults));
	ccplane_put_u64(out, READ_ONCE(flow->reports));
	ccplane_put_u64(out, READ_ONCE(sample->at_us));
	if (asks)
		put_policy(out, &flow->state.policy);
}

void ccplane_list_start(struct ccplane_agent *agent, u32 request)
{
	struct ccplane_listing *listing = &agent->listing;

	/* An answer that is under way is answer enough. */
	if (listing->active)
		return;
	spin_lock_bh(&ccplane_table_lock);
	spin_lock(&agent->ring_lock);
	listing->active = true;
	listing->request = request;
	listing->cursor = 0;
	listing->late = 0;
	listing->newest = ccplane_flow_newest();
	listing->places = ccplane_flow_places();
	spin_unlock(&agent->ring_lock);
	spin_unlock_bh(&ccplane_table_lock);
	ccplane_list_go_on(agent);
}

/* The next frame of a list; how many flows it has. */
static u16 encode_list(struct ccplane_agent *agent, struct ccplane_out *out, u64 now_us)
{
	struct ccplane_listing *listing = &agent->listing;
	struct ccplane_tcp_flow *flow;
	size_t start = ccplane_frame_start(out, CCPLANE_FLOW_STATS, listing->request), count_at;
	size_t end;
	u16 count = 0;

	count_at = out->len;
	ccplane_put_u8(out, 0);
	ccplane_put_u16(out, 0);
	for (; listing->cursor < listing->places && count < LISTED; listing->cursor++) {
		spin_lock_bh(&ccplane_table_lock);
		rcu_read_lock();
		flow = ccplane_flow_at(listing->cursor);
		/* Those that have started since are told of afterwards. */
		if (flow && rcu_access_pointer(flow->agent) == agent && flow->id >> CCPLANE_INDEX_BITS <= listing->newest) {
			put_stats(out, agent, flow, now_us);
			count++;
		}
		rcu_read_unlock();
		spin_unlock_bh(&ccplane_table_lock);
	}
	end = out->len;
	out->len = count_at;
	ccplane_put_u8(out, listing->cursor >= listing->places);
	ccplane_put_u16(out, count);
	out->len = end;
	ccplane_frame_end(out, start);
	return count;
}

/* The list is complete: what happened meanwhile follows. */
static void end_list(struct ccplane_agent *agent)
{
	struct ccplane_listing *listing = &agent->listing;
	struct ccplane_tcp_flow *flow;
	u8 bytes[SHORT_BYTES];
	struct ccplane_out out = { .bytes = bytes, .room = sizeof(bytes) };
	bool started;
	u32 n;

	spin_lock_bh(&ccplane_table_lock);
	spin_lock(&agent->ring_lock);
	listing->active = false;
	for (n = 0; n < listing->late; n++) {
		out.len = 0;
		encode_closed(&out, listing->late_ids[n]);
		tell_event(agent, &out);
	}
	started = ccplane_flow_newest() > listing->newest;
	for (n = 0; started && n < ccplane_flow_places(); n++) {
		rcu_read_lock();
		flow = ccplane_flow_at(n);
		if (flow && rcu_access_pointer(flow->agent) == agent && flow->id >> CCPLANE_INDEX_BITS > listing->newest) {
			out.len = 0;
			encode_created(&out, flow);
			tell_event(agent, &out);
		}
		rcu_read_unlock();
	}
	spin_unlock(&agent->ring_lock);
	spin_unlock_bh(&ccplane_table_lock);
}

void ccplane_list_go_on(struct ccplane_agent *agent)
{
	struct ccplane_out out = { .bytes = agent->frame, .room = CCPLANE_MAX_FRAME_BYTES };
	u64 now_us = ccplane_now_us();

	BUILD_BUG_ON(LISTED * LISTED_BYTES + SHORT_BYTES > CCPLANE_MAX_FRAME_BYTES);
	while (agent->listing.active && ccplane_ring_has_room(&agent->ring, LISTED * LISTED_BYTES)) {
		out.len = 0;
		encode_list(agent, &out, now_us);
		if (!ccplane_tell(agent, &out))
			atomic64_inc(&ccplane_counters.dropped);
		if (agent->listing.cursor >= agent->listing.places)
			end_list(agent);
	}
}

static void put_snapshot(struct ccplane_out *out, const struct ccplane_slot *slot, int buffer)
{
	u32 uid = buffer < 0 ? 0 : ccplane_u32(slot->images[buffer], CCPLANE_UID);

	ccplane_put_u8(out, uid != 0);
	if (uid)
		ccplane_put_u32(out, uid);
}

void ccplane_tell_slots(struct ccplane_agent *agent, u32 request)
{
	const struct ccplane_slots *slots;
	struct ccplane_out out = { .bytes = agent->frame, .room = CCPLANE_MAX_FRAME_BYTES };
	size_t start = ccplane_frame_start(&out, CCPLANE_SLOTS, request), count_at = out.len, end;
	unsigned int n, word;
	u16 count = 0;
	int active;

	ccplane_put_u16(&out, 0);
	/* Nobody else replaces them. */
	slots = &rcu_dereference_protected(agent->policies->now, lockdep_is_held(&agent->mutex))->slots;
	for (n = 0; n < CCPLANE_MAX_POLICY_SLOTS; n++) {
		const struct ccplane_slot *slot = &slots->slot[n];

		if (!slot->shape)
			continue;
		count++;
		active = ccplane_part(slots->control[n], 0);
		ccplane_put_u8(&out, (u8)n);
		ccplane_put_u64(&out, slot->shape);
		put_snapshot(&out, slot, active);
		for (word = 0; word < NAME_WORDS; word++)
			ccplane_put_u64(&out, active < 0 ? 0 : slot->images[active][NAME_AT / 8 + word]);
		put_snapshot(&out, slot, ccplane_part(slots->control[n], 8));
		ccplane_put_u16(&out, (u16)(slots->control[n] >> 32));
		put_snapshot(&out, slot, ccplane_part(slots->control[n], 16));
	}
	end = out.len;
	out.len = count_at;
	ccplane_put_u16(&out, count);
	out.len = end;
	ccplane_frame_end(&out, start);
	ccplane_tell(agent, &out);
}
