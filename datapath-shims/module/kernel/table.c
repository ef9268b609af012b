// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The table of flows. */
#include <linux/vmalloc.h>

#include "module.h"

DEFINE_SPINLOCK(ccplane_table_lock);
/* Under table_lock; read under RCU. */
static struct ccplane_tcp_flow __rcu **table;
/* Free places, a stack. Under table_lock. */
static u32 *free_places;
static u32 free_count;
static u64 newest;
/* Places that have ever been taken: the lowest free one is. Nothing looks beyond. */
static u32 places;

int ccplane_flow_table_init(void)
{
	u32 n;

	table = vzalloc(array_size(ccplane_max_flows, sizeof(*table)));
	free_places = vmalloc(array_size(ccplane_max_flows, sizeof(*free_places)));
	if (!table || !free_places) {
		ccplane_flow_table_exit();
		return -ENOMEM;
	}
	/* The lowest place is taken first. */
	for (n = 0; n < ccplane_max_flows; n++)
		free_places[n] = ccplane_max_flows - 1 - n;
	free_count = ccplane_max_flows;
	return 0;
}

void ccplane_flow_table_exit(void)
{
	vfree(free_places);
	vfree(table);
}

bool ccplane_flow_add(struct ccplane_tcp_flow *flow)
{
	lockdep_assert_held(&ccplane_table_lock);
	if (!free_count)
		return false;
	flow->index = free_places[--free_count];
	WRITE_ONCE(places, max(places, flow->index + 1));
	flow->id = ++newest << CCPLANE_INDEX_BITS | flow->index;
	rcu_assign_pointer(table[flow->index], flow);
	atomic_inc(&ccplane_counters.flows);
	return true;
}

void ccplane_flow_remove(const struct ccplane_tcp_flow *flow)
{
	lockdep_assert_held(&ccplane_table_lock);
	RCU_INIT_POINTER(table[flow->index], NULL);
	free_places[free_count++] = flow->index;
	atomic_dec(&ccplane_counters.flows);
}

struct ccplane_tcp_flow *ccplane_flow_at(u32 index)
{
	return index < ccplane_flow_places() ? rcu_dereference_check(table[index], lockdep_is_held(&ccplane_table_lock)) :
					       NULL;
}

struct ccplane_tcp_flow *ccplane_flow_find(u64 id)
{
	struct ccplane_tcp_flow *flow = ccplane_flow_at(id & (CCPLANE_MAX_FLOWS - 1));

	return flow && flow->id == id ? flow : NULL;
}

u32 ccplane_flow_places(void)
{
	return READ_ONCE(places);
}

u64 ccplane_flow_newest(void)
{
	return READ_ONCE(newest);
}
