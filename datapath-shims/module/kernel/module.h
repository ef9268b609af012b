/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The module's parts and what they share. A part calls those below it alone; the parameters and counters of main.c are everybody's.
 *
 *   main.c       parameters, statistics, start and end
 *   portus_netlink.c, portus_device.c
 *                the links to a stock portus agent
 *   portus.c     the device over which our agent speaks to that one
 *   device.c     the character device
 *   agent.c      one opener of the device: its programs, its slots, its commands
 *   tcp.c        what each ACK does: measure, run the program, apply; native Reno or CUBIC
 *   flows.c      starts and ends of flows, and what agents stage for their next ACK
 *   report.c     what goes to agents: reports, starts and ends of flows, lists
 *   installed.c  programs, and the slots that they ask
 *   table.c      the table of flows
 *   ring.c       the memory that an agent maps and reads reports from
 *
 * Locks, outermost first: agent.mutex (commands of one agent), table_lock (who has which flow), agent.ring_lock (writers
 * of its ring), flow.stage_lock. An ACK waits for none but the ring's: it tries stage_lock, and looks again at the next ACK.
 * Agents, flows, slots and the table are read under RCU.
 */
#ifndef CCPLANE_MODULE_H
#define CCPLANE_MODULE_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <net/net_namespace.h>
#include <net/tcp.h>

#include "vm.h"
#include "wire.h"

#define CCPLANE_INDEX_BITS 16
#define CCPLANE_MAX_FLOWS (1u << CCPLANE_INDEX_BITS)
#define CCPLANE_MAX_PROGRAMS 1024u
#define CCPLANE_MASKS 2
/* Ends of flows that are kept back while a list of them is under way; what is more is counted as dropped. */
#define CCPLANE_MAX_LATE 256

/* Parameters, fixed once the module is loaded. */
extern unsigned int ccplane_max_flows;
extern unsigned int ccplane_max_programs;
extern unsigned int ccplane_timeout_ms;
extern unsigned int ccplane_sample_us;
extern unsigned int ccplane_ring_bytes;
extern bool ccplane_native_cubic;

/* What the module counts, for /sys/class/misc/NAME/. */
struct ccplane_counters {
	atomic64_t table_full;	/* flows that found no place */
	atomic64_t reports;	/* reports of programs */
	atomic64_t dropped;	/* events that found no room in a ring */
	atomic64_t refused;	/* commands that were refused */
	atomic64_t malformed;	/* writes that were no messages */
	atomic64_t natives;	/* switches from a program to the native algorithm */
	atomic_t flows;
	atomic_t agents;
	atomic_t programs;	/* installed, or run by a flow whose agent has gone */
};
extern struct ccplane_counters ccplane_counters;

/* Policy slots. They last as long as their agent, and the programs that it has installed. */
struct ccplane_policies {
	refcount_t refs;
	/* Replaced as a whole. */
	struct ccplane_slots_rcu __rcu *now;
};

struct ccplane_slots_rcu {
	struct ccplane_slots slots;
	struct rcu_head rcu;
};

/* An installed program. */
struct ccplane_program {
	refcount_t refs;
	struct list_head list;	/* of its agent */
	u64 agent;		/* the agent's number */
	u32 uid;
	struct ccplane_policies *policies;
	struct rcu_head rcu;
	struct ccplane_prog prog;	/* only as much of it as is in use */
};

/* Who decides for a flow. The numbers are the protocol's. */
enum ccplane_mode { CCPLANE_BY_PROGRAM, CCPLANE_BY_NONE, CCPLANE_BY_SILENCE, CCPLANE_BY_POLICY };

/* What an agent wants of a flow at its next ACK. */
struct ccplane_staged {
	struct ccplane_program *start;	/* the program to start; holds a reference */
	bool starts;			/* it has not started yet */
	const struct ccplane_program *program;	/* the one that the fields are meant for; compared only */
	bool release;			/* hand the flow to the native algorithm */
	bool has_cwnd;
	bool has_rate;
	s64 cwnd;
	s64 rate;
	u64 masks[CCPLANE_MASKS];
	s64 regs[CCPLANE_MAX_REGS];
};

/* A flow's statistics as of its last sample, and what is fixed. Read while it is written: each field is whole. */
struct ccplane_sample {
	u64 at_us;
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 mss;
	u32 srtt_us;
	u32 min_rtt_us;
	u32 packets_out;
	u64 pacing_rate;
	u64 bytes_acked;
	u32 delivered;
	u32 lost;
};

/* CUBIC's state (RFC 9438). */
struct ccplane_cubic {
	u64 epoch_us;		/* when the current stage of avoidance began; 0 for none */
	u32 w_max;		/* packets */
	u32 origin;		/* the window at the plateau, packets */
	u32 k_ms;		/* from the epoch to the plateau */
	u32 reno;		/* what Reno would have, packets */
	u32 reno_acked;		/* packets towards its next one, times 17 */
};

/* One flow. */
struct ccplane_tcp_flow {
	/* Read and written by the socket's owner alone. */
	struct ccplane_program *program;	/* holds a reference */
	const struct sock *sk;
	u8 mode;				/* enum ccplane_mode */
	bool timeout;				/* not shown to the program yet */
	u32 last_sacked;
	u32 last_ce;
	u32 last_lost;
	u32 reports;
	u64 last_bytes_acked;
	s64 undo_cwnd;				/* bytes; 0 for none */
	u32 prr_delivered;
	u32 told_mss;				/* what the program knows as the segment size, bytes */
	struct ccplane_cubic cubic;
	struct ccplane_flow state;
	struct ccplane_sample sample;

	/* Fixed. */
	u64 id;
	u64 cgroup;
	u32 index;
	u32 first_mss;
	u32 init_cwnd;				/* packets */
	u16 family;
	u16 local_port;
	u16 remote_port;
	u8 local[16];
	u8 remote[16];
	const char *requested;			/* the name that its socket asked for, where that is not the module's own */

	/* Under table_lock; read under RCU. */
	struct ccplane_agent __rcu *agent;
	u64 orphan_until_us;			/* without an agent, the program runs until then */

	/* Under table_lock. */
	struct ccplane_program *set;		/* the program that was set last; holds a reference */

	/* Under stage_lock. */
	spinlock_t stage_lock;
	bool is_staged;
	struct ccplane_staged staged;

	struct rcu_head rcu;
};

/* What waits in memory that the agent may map. */
struct ccplane_ring {
	u64 *words;
	u64 tail;		/* number of the next line */
	u64 head;		/* the reader's position when it was last looked at */
	u64 capacity;		/* lines */
	size_t bytes;		/* of the whole mapping */
};

/* A list of flows that is being sent. */
struct ccplane_listing {
	bool active;
	u32 request;
	u32 cursor;		/* the next place in the table */
	u32 places;		/* those that it goes through */
	u64 newest;		/* the newest flow that it may hold */
	u32 late;
	u64 late_ids[CCPLANE_MAX_LATE];
};

/* One opener of the device. */
struct ccplane_agent {
	struct mutex mutex;
	struct mutex ring_mutex;	/* between reading the ring and mapping it; under mmap_lock, so nothing faults under it */
	u64 number;
	struct net *net;
	bool said_hello;
	bool attached;		/* WELCOME was said */
	bool mapped;
	struct list_head programs;
	u32 program_count;
	struct ccplane_policies *policies;
	u8 *command;		/* CCPLANE_MAX_FRAME_BYTES */
	u8 *frame;		/* likewise */
	struct ccplane_prog *scratch;

	u64 beat_us;
	u64 timeout_us;

	spinlock_t ring_lock;
	struct ccplane_ring ring;
	struct ccplane_listing listing;
	u64 dropped;		/* events that the agent has not been told of */
	bool corrupt;		/* it wrote what cannot be into its ring */
	wait_queue_head_t wait;
	struct rcu_head rcu;
};

static inline u64 ccplane_now_us(void)
{
	return div_u64(ktime_get_ns(), NSEC_PER_USEC);
}

/* ring.c */
int ccplane_ring_init(struct ccplane_ring *ring, unsigned int bytes);
void ccplane_ring_free(struct ccplane_ring *ring);
/* 0; -ENOBUFS if there is no room; -EPROTO if the reader's position cannot be. */
int ccplane_ring_write(struct ccplane_ring *ring, const u8 *bytes, size_t len);
/* Whether a reader sleeps, who is awake then. */
bool ccplane_ring_wakes(struct ccplane_ring *ring);
bool ccplane_ring_is_empty(const struct ccplane_ring *ring);
bool ccplane_ring_has_room(const struct ccplane_ring *ring, size_t bytes);
/* The next record into `to`, which has room for any; 0 if there is none. Only while nobody else can write there. */
size_t ccplane_ring_read(struct ccplane_ring *ring, u8 *to);

/* table.c */
extern spinlock_t ccplane_table_lock;
int ccplane_flow_table_init(void);
void ccplane_flow_table_exit(void);
/* Gives the flow a place in the table, and its id; false if there is no room. Under table_lock. */
bool ccplane_flow_add(struct ccplane_tcp_flow *flow);
void ccplane_flow_remove(const struct ccplane_tcp_flow *flow);
/* The flow of this id; under RCU or table_lock. */
struct ccplane_tcp_flow *ccplane_flow_find(u64 id);
/* The flow at a place in the table, or NULL; likewise. */
struct ccplane_tcp_flow *ccplane_flow_at(u32 index);
/* Places of the table that may hold a flow: those below this number. */
u32 ccplane_flow_places(void);
/* Number of flows so far: ids count them in their upper bits. */
u64 ccplane_flow_newest(void);

/* installed.c */
struct ccplane_policies *ccplane_policies_new(void);
void ccplane_policies_put(struct ccplane_policies *policies);
void ccplane_program_put(struct ccplane_program *program);
static inline struct ccplane_program *ccplane_program_get(struct ccplane_program *program)
{
	refcount_inc(&program->refs);
	return program;
}

/* report.c */
size_t ccplane_say_hello(struct ccplane_agent *agent, const char *name);
void ccplane_tell_report(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow, u64 now_us, bool wake);
void ccplane_tell_created(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow);
void ccplane_tell_closed(struct ccplane_agent *agent, const struct ccplane_tcp_flow *flow);
/* One frame that answers a command: false if it found no room. */
bool ccplane_tell(struct ccplane_agent *agent, const struct ccplane_out *out);
void ccplane_list_start(struct ccplane_agent *agent, u32 request);
/* Goes on with a list of flows, as far as there is room. Under agent.mutex. */
void ccplane_list_go_on(struct ccplane_agent *agent);
void ccplane_tell_slots(struct ccplane_agent *agent, u32 request);

/* flows.c */
int ccplane_flows_init(void);
void ccplane_flows_exit(void);
/* A flow for the socket, in the table and announced; NULL if there is no room. requested: as in the flow. */
struct ccplane_tcp_flow *ccplane_flow_open(struct sock *sk, const char *requested, u64 now_us);
void ccplane_flow_close(struct ccplane_tcp_flow *flow);
/*
 * Claims what is staged, and switches to the program that it starts, if any; false if the agent is writing there just now.
 * Until ccplane_flow_end_claim the claim is the caller's.
 */
bool ccplane_flow_claim(struct ccplane_tcp_flow *flow);
/* Starts the program, if it is to, and sets its fields. */
void ccplane_flow_apply_claimed(struct ccplane_tcp_flow *flow, u64 now_us);
void ccplane_flow_end_claim(struct ccplane_tcp_flow *flow);
/* Stages a change for the flow's next ACK. start: a program, whose reference is taken over; or NULL. Under table_lock. */
void ccplane_flow_stage(struct ccplane_tcp_flow *flow, struct ccplane_program *start, bool release,
			const struct ccplane_program *program, const struct ccplane_command *fields);
/* Flows that run the program, or will. */
u32 ccplane_flow_count_users(const struct ccplane_program *program);
/* Gives the agent the flows of its namespaces. */
int ccplane_flows_attach(struct ccplane_agent *agent);
/* Takes its flows away; with release they go to the native algorithm at once. */
void ccplane_flows_detach(struct ccplane_agent *agent, bool release);
bool ccplane_netns_has_agent(const struct net *net);
int ccplane_netns_init(void);
void ccplane_netns_exit(void);

/* tcp.c */
extern struct tcp_congestion_ops ccplane_tcp;

/* agent.c */
struct ccplane_agent *ccplane_agent_open(struct net *net);
void ccplane_agent_close(struct ccplane_agent *agent);
/* Carries out commands. Bytes taken, or an error. Under agent.mutex. */
ssize_t ccplane_agent_carry_out(struct ccplane_agent *agent, const u8 *bytes, size_t len);

/* device.c */
int ccplane_device_init(const char *name);
void ccplane_device_exit(void);

/* Portus receives into 1024 bytes. */
#define CCPLANE_MAX_TO_PORTUS_BYTES 1024
#define CCPLANE_MAX_FROM_PORTUS_BYTES (1 << 16)
/* How messages reach a stock portus agent and come from it, to portus.c. */
struct ccplane_portus_link {
	int (*open)(void);
	void (*close)(void);
	/* One message: 0; -ENOTCONN if portus does not listen, -EAGAIN if it has no room; or another error. */
	int (*send)(const char __user *from, size_t len);
	bool (*has_listener)(void);
	/* What portus has not read; NULL where the link cannot tell. */
	size_t (*unread_bytes)(void);
};

/* portus.c */
int ccplane_portus_init(const char *name, const struct ccplane_portus_link *link);
void ccplane_portus_exit(void);
/* Takes over one message of portus, without any header of the link's. */
void ccplane_portus_hear(struct sk_buff *message);
/* Says that portus has gone, before anything of another one. What it said and nobody has read yet is void. */
void ccplane_portus_gone(void);
/* Gives a message to user space and frees it: its bytes, or an error. */
ssize_t ccplane_portus_give(struct sk_buff *message, char __user *to, size_t room);

/* portus_netlink.c, portus_device.c */
extern const struct ccplane_portus_link ccplane_portus_netlink;
extern const struct ccplane_portus_link ccplane_portus_device;

#endif
