// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Installed programs, and the slots that they ask: each lasts as long as an agent or a flow holds it. */
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "module.h"

struct ccplane_policies *ccplane_policies_new(void)
{
	struct ccplane_policies *policies = kzalloc(sizeof(*policies), GFP_KERNEL_ACCOUNT);
	struct ccplane_slots_rcu *slots = kzalloc(sizeof(*slots), GFP_KERNEL_ACCOUNT);

	if (!policies || !slots) {
		kfree(policies);
		kfree(slots);
		return NULL;
	}
	ccplane_slots_init(&slots->slots);
	refcount_set(&policies->refs, 1);
	RCU_INIT_POINTER(policies->now, slots);
	return policies;
}

void ccplane_policies_put(struct ccplane_policies *policies)
{
	struct ccplane_slots_rcu *slots;
	unsigned int slot, buffer;

	if (!refcount_dec_and_test(&policies->refs))
		return;
	slots = rcu_dereference_protected(policies->now, 1);
	/* ACKs read under RCU, and only through a program, of which none is left. */
	for (slot = 0; slots && slot < CCPLANE_MAX_POLICY_SLOTS; slot++)
		for (buffer = 0; buffer < CCPLANE_BUFFERS; buffer++)
			if (slots->slots.slot[slot].images[buffer] != ccplane_no_image)
				kvfree(slots->slots.slot[slot].images[buffer]);
	kfree(slots);
	kfree(policies);
}

static void free_program(struct rcu_head *rcu)
{
	struct ccplane_program *program = container_of(rcu, struct ccplane_program, rcu);

	ccplane_policies_put(program->policies);
	kvfree(program);
	atomic_dec(&ccplane_counters.programs);
}

void ccplane_program_put(struct ccplane_program *program)
{
	/* Later: this may be an ACK, and others may still look at it. */
	if (program && refcount_dec_and_test(&program->refs))
		call_rcu(&program->rcu, free_program);
}
