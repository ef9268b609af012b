// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Starts and ends of flows, who they belong to, and what is staged for them. */
#include <linux/cgroup.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <net/netns/generic.h>

#include "module.h"

static struct kmem_cache *flow_cache;

/* A network namespace's own agent. */
struct ccplane_netns {
	struct ccplane_agent *agent;	/* under table_lock */
};
static unsigned int netns_id;
static struct pernet_operations netns_ops = {
	.id = &netns_id,
	.size = sizeof(struct ccplane_netns),
};

int ccplane_netns_init(void)
{
	return register_pernet_subsys(&netns_ops);
}

void ccplane_netns_exit(void)
{
	unregister_pernet_subsys(&netns_ops);
}

static struct ccplane_netns *netns_of(const struct net *net)
{
	return net_generic(net, netns_id);
}

bool ccplane_netns_has_agent(const struct net *net)
{
	return READ_ONCE(netns_of(net)->agent);
}

/* The agent of a namespace: its own, or else that of the machine. Under table_lock. */
static struct ccplane_agent *agent_of(const struct net *net)
{
	struct ccplane_agent *agent = netns_of(net)->agent;

	return agent ? agent : netns_of(&init_net)->agent;
}

int ccplane_flows_init(void)
{
	int error = ccplane_flow_table_init();

	if (error)
		return error;
	flow_cache = kmem_cache_create("ccplane_flow", sizeof(struct ccplane_tcp_flow), 0, SLAB_HWCACHE_ALIGN, NULL);
	if (!flow_cache) {
		ccplane_flow_table_exit();
		return -ENOMEM;
	}
	return 0;
}

void ccplane_flows_exit(void)
{
	/* Flows are freed after a grace period. */
	rcu_barrier();
	kmem_cache_destroy(flow_cache);
	ccplane_flow_table_exit();
}

static void set_addresses(struct ccplane_tcp_flow *flow, const struct sock *sk)
{
	flow->local_port = sk->sk_num;
	flow->remote_port = ntohs(sk->sk_dport);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 && !ipv6_addr_v4mapped(&sk->sk_v6_daddr)) {
		flow->family = AF_INET6;
		memcpy(flow->local, &sk->sk_v6_rcv_saddr, sizeof(flow->local));
		memcpy(flow->remote, &sk->sk_v6_daddr, sizeof(flow->remote));
		return;
	}
#endif
	flow->family = AF_INET;
	memcpy(flow->local, &sk->sk_rcv_saddr, sizeof(sk->sk_rcv_saddr));
	memcpy(flow->remote, &sk->sk_daddr, sizeof(sk->sk_daddr));
}

static u64 cgroup_of(struct sock *sk)
{
#ifdef CONFIG_SOCK_CGROUP_DATA
	struct cgroup *cgroup = sock_cgroup_ptr(&sk->sk_cgrp_data);

	return cgroup ? cgroup_id(cgroup) : 0;
#else
	return 0;
#endif
}

struct ccplane_tcp_flow *ccplane_flow_open(struct sock *sk, const char *requested, u64 now_us)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	/* Flows start in interrupts, too. */
	struct ccplane_tcp_flow *flow = kmem_cache_zalloc(flow_cache, GFP_ATOMIC | __GFP_NOWARN);
	struct ccplane_agent *agent;

	if (!flow)
		goto full;
	flow->sk = sk;
	flow->mode = CCPLANE_BY_NONE;
	flow->first_mss = max(tp->mss_cache, 1u);
	flow->init_cwnd = tp->snd_cwnd;
	flow->sample.at_us = now_us;
	flow->sample.snd_cwnd = tp->snd_cwnd;
	flow->sample.snd_ssthresh = tp->snd_ssthresh;
	flow->sample.mss = flow->first_mss;
	flow->sample.min_rtt_us = tcp_min_rtt(tp);
	flow->cgroup = cgroup_of(sk);
	flow->requested = requested;
	set_addresses(flow, sk);
	spin_lock_init(&flow->stage_lock);
	ccplane_flow_init(&flow->state, (s64)tp->snd_cwnd * flow->first_mss);

	spin_lock_bh(&ccplane_table_lock);
	agent = agent_of(sock_net(sk));
	rcu_assign_pointer(flow->agent, agent);
	if (!ccplane_flow_add(flow)) {
		spin_unlock_bh(&ccplane_table_lock);
		kmem_cache_free(flow_cache, flow);
		goto full;
	}
	if (agent)
		ccplane_tell_created(agent, flow);
	spin_unlock_bh(&ccplane_table_lock);
	return flow;
full:
	atomic64_inc(&ccplane_counters.table_full);
	return NULL;
}

static void free_flow(struct rcu_head *rcu)
{
	kmem_cache_free(flow_cache, container_of(rcu, struct ccplane_tcp_flow, rcu));
}

void ccplane_flow_close(struct ccplane_tcp_flow *flow)
{
	struct ccplane_program *programs[3];
	struct ccplane_agent *agent;
	unsigned int n;

	spin_lock_bh(&ccplane_table_lock);
	ccplane_flow_remove(flow);
	agent = rcu_dereference_protected(flow->agent, lockdep_is_held(&ccplane_table_lock));
	if (agent)
		ccplane_tell_closed(agent, flow);
	/* Under table_lock an agent stages for flows that are in the table only. */
	programs[0] = flow->program;
	programs[1] = flow->set;
	programs[2] = flow->staged.start;
	spin_unlock_bh(&ccplane_table_lock);
	for (n = 0; n < ARRAY_SIZE(programs); n++)
		ccplane_program_put(programs[n]);
	call_rcu(&flow->rcu, free_flow);
}

bool ccplane_flow_claim(struct ccplane_tcp_flow *flow)
{
	struct ccplane_staged *staged = &flow->staged;
	struct ccplane_program *before = NULL;

	/*
	 * An ACK may come from a socket's backlog, which interrupts may interrupt: one that starts a flow there would wait for
	 * table_lock, whose holder may wait for this lock.
	 */
	if (!spin_trylock_bh(&flow->stage_lock))
		return false;
	if (!flow->is_staged) {
		spin_unlock_bh(&flow->stage_lock);
		return false;
	}
	if (staged->start || staged->release) {
		before = flow->program;
		WRITE_ONCE(flow->program, staged->start);
		staged->starts = staged->start;
		staged->start = NULL;
		staged->release = false;
		if (flow->mode == CCPLANE_BY_POLICY)
			WRITE_ONCE(flow->mode, CCPLANE_BY_NONE);
	}
	ccplane_program_put(before);
	return true;
}

void ccplane_flow_apply_claimed(struct ccplane_tcp_flow *flow, u64 now_us)
{
	struct ccplane_staged *staged = &flow->staged;
	const struct ccplane_prog *prog = &flow->program->prog;
	unsigned int n;

	if (staged->program != flow->program)
		return;
	if (staged->starts) {
		ccplane_flow_start(prog, &flow->state, (s64)now_us);
		flow->told_mss = flow->first_mss;
	}
	if (staged->has_cwnd) {
		ccplane_flow_set(prog, &flow->state, CCPLANE_FIELD_CWND, 0, staged->cwnd);
		flow->undo_cwnd = 0;
	}
	if (staged->has_rate)
		ccplane_flow_set(prog, &flow->state, CCPLANE_FIELD_RATE, 0, staged->rate);
	for (n = 0; n < prog->regs; n++)
		if (staged->masks[n / 64] & BIT_ULL(n % 64))
			ccplane_flow_set(prog, &flow->state, CCPLANE_FIELD_REG, (u8)n, staged->regs[n]);
}

void ccplane_flow_end_claim(struct ccplane_tcp_flow *flow)
{
	struct ccplane_staged *staged = &flow->staged;

	staged->starts = false;
	staged->has_cwnd = false;
	staged->has_rate = false;
	staged->program = NULL;
	memset(staged->masks, 0, sizeof(staged->masks));
	WRITE_ONCE(flow->is_staged, false);
	spin_unlock_bh(&flow->stage_lock);
}

/* Adds one value. What is no decision must not hide an earlier one. */
static void stage_field(struct ccplane_staged *staged, struct ccplane_field_value field)
{
	if (field.where == 1 && field.value > 0) {
		staged->has_cwnd = true;
		staged->cwnd = field.value;
	} else if (field.where == 2 && field.value >= 0) {
		staged->has_rate = true;
		staged->rate = field.value;
	} else if (field.where == 0 && field.reg < CCPLANE_MAX_REGS) {
		staged->masks[field.reg / 64] |= BIT_ULL(field.reg % 64);
		staged->regs[field.reg] = field.value;
	}
}

void ccplane_flow_stage(struct ccplane_tcp_flow *flow, struct ccplane_program *start, bool release,
			const struct ccplane_program *program, const struct ccplane_command *fields)
{
	struct ccplane_staged *staged = &flow->staged;
	struct ccplane_program *before = NULL;
	unsigned int n;

	lockdep_assert_held(&ccplane_table_lock);
	spin_lock(&flow->stage_lock);
	/* A staged window or rate outlives a change of programs; registers of the old one do not. */
	if (start || release || staged->program != program)
		memset(staged->masks, 0, sizeof(staged->masks));
	if (start || release) {
		before = staged->start;
		WRITE_ONCE(staged->start, start);
		WRITE_ONCE(staged->release, release);
	}
	staged->program = program;
	for (n = 0; fields && n < fields->fields; n++)
		stage_field(staged, ccplane_command_field(fields, n));
	WRITE_ONCE(flow->is_staged, true);
	spin_unlock(&flow->stage_lock);
	ccplane_program_put(before);
}

u32 ccplane_flow_count_users(const struct ccplane_program *program)
{
	struct ccplane_tcp_flow *flow;
	u32 n, users = 0;

	for (n = 0; n < ccplane_flow_places(); n++) {
		rcu_read_lock();
		flow = ccplane_flow_at(n);
		if (flow && (READ_ONCE(flow->program) == program || READ_ONCE(flow->staged.start) == program))
			users++;
		rcu_read_unlock();
	}
	return users;
}

/* Gives a flow to another agent, or to none. Under table_lock. */
static void hand(struct ccplane_tcp_flow *flow, struct ccplane_agent *to, u64 orphan_until_us, bool tells)
{
	struct ccplane_agent *from = rcu_dereference_protected(flow->agent, lockdep_is_held(&ccplane_table_lock));

	if (from == to)
		return;
	if (from && tells)
		ccplane_tell_closed(from, flow);
	/* What one agent set is not set for the next. */
	ccplane_program_put(flow->set);
	flow->set = NULL;
	WRITE_ONCE(flow->orphan_until_us, orphan_until_us);
	rcu_assign_pointer(flow->agent, to);
	if (to)
		ccplane_tell_created(to, flow);
}

/* Gives each flow to whoever it belongs to now. Under table_lock. */
static void hand_all(u64 orphan_until_us, const struct ccplane_agent *leaves)
{
	struct ccplane_tcp_flow *flow;
	struct ccplane_agent *from;
	u32 n;

	for (n = 0; n < ccplane_flow_places(); n++) {
		flow = ccplane_flow_at(n);
		if (!flow)
			continue;
		from = rcu_dereference_protected(flow->agent, lockdep_is_held(&ccplane_table_lock));
		hand(flow, agent_of(sock_net(flow->sk)), orphan_until_us, from != leaves);
	}
}

int ccplane_flows_attach(struct ccplane_agent *agent)
{
	int error = 0;

	spin_lock_bh(&ccplane_table_lock);
	if (netns_of(agent->net)->agent)
		error = -EBUSY;
	else
		netns_of(agent->net)->agent = agent;
	if (!error)
		hand_all(0, NULL);
	spin_unlock_bh(&ccplane_table_lock);
	return error;
}

static void release_all(const struct ccplane_agent *agent)
{
	struct ccplane_tcp_flow *flow;
	u32 n;

	for (n = 0; n < ccplane_flow_places(); n++) {
		flow = ccplane_flow_at(n);
		if (flow && rcu_access_pointer(flow->agent) == agent)
			ccplane_flow_stage(flow, NULL, true, NULL, NULL);
	}
}

void ccplane_flows_detach(struct ccplane_agent *agent, bool release)
{
	spin_lock_bh(&ccplane_table_lock);
	if (release)
		release_all(agent);
	netns_of(agent->net)->agent = NULL;
	hand_all(release ? U64_MAX : agent->beat_us + agent->timeout_us, agent);
	spin_unlock_bh(&ccplane_table_lock);
	/* No ACK knows the agent any more. */
	synchronize_rcu();
}
