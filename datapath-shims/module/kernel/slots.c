// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* What the agent's commands do to policy slots: datapath-shims/contract/src/slots.rs. */
#include "vm.h"

/* Where a control word holds its parts: each a buffer's number and one, or 0; the canary's share in 16 bits. */
#define ACTIVE 0
#define CANARY 8
#define LAST_GOOD 16
#define SHARE 32

static int refused(struct ccplane_error *error, uint32_t code, uint8_t slot)
{
	*error = (struct ccplane_error){ code, CCPLANE_AT_SLOT, slot };
	return -1;
}

static uint64_t part(int buffer, unsigned int shift)
{
	return (uint64_t)(buffer + 1) << shift;
}

static bool has_part(uint64_t control, int buffer)
{
	return ccplane_part(control, ACTIVE) == buffer || ccplane_part(control, CANARY) == buffer ||
	       ccplane_part(control, LAST_GOOD) == buffer;
}

/* The control word once this buffer is active: what was active before is the last good one. */
static uint64_t activated(uint64_t control, int buffer)
{
	int active = ccplane_part(control, ACTIVE);

	return part(buffer, ACTIVE) | part(active >= 0 ? active : ccplane_part(control, LAST_GOOD), LAST_GOOD);
}

static bool is_defined(const struct ccplane_slots *slots, uint8_t slot)
{
	return slot < CCPLANE_MAX_POLICY_SLOTS && slots->slot[slot].shape;
}

void ccplane_slots_init(struct ccplane_slots *slots)
{
	unsigned int slot, buffer;

	memset(slots, 0, sizeof(*slots));
	for (slot = 0; slot < CCPLANE_MAX_POLICY_SLOTS; slot++) {
		slots->slot[slot].infer = ccplane_image_infer;
		for (buffer = 0; buffer < CCPLANE_BUFFERS; buffer++)
			slots->slot[slot].images[buffer] = ccplane_no_image;
	}
}

int ccplane_slot_define(struct ccplane_slots *slots, uint8_t slot, uint64_t shape, struct ccplane_error *error)
{
	if (slot >= CCPLANE_MAX_POLICY_SLOTS)
		return refused(error, CCPLANE_NO_SLOT, slot);
	if (!ccplane_shape_image_bytes(shape))
		return refused(error, CCPLANE_BAD_SHAPE, slot);
	if (slots->slot[slot].shape && slots->slot[slot].shape != shape)
		return refused(error, CCPLANE_OTHER_SHAPE, slot);
	slots->slot[slot].shape = shape;
	return 0;
}

/* The buffer without a part whose image is the oldest, an empty one first; -1 if all have a part. */
static int free_buffer(const struct ccplane_slot *slot, uint64_t control)
{
	int buffer, found = -1;

	for (buffer = 0; buffer < CCPLANE_BUFFERS; buffer++)
		if (!has_part(control, buffer) &&
		    (found < 0 || ccplane_u32(slot->images[buffer], CCPLANE_UID) <
					  ccplane_u32(slot->images[found], CCPLANE_UID)))
			found = buffer;
	return found;
}

int ccplane_slot_push(struct ccplane_slots *slots, uint8_t slot, const uint64_t *image, bool canary, uint16_t share,
		      const uint64_t **replaced, struct ccplane_error *error)
{
	struct ccplane_slot *to;
	uint64_t control;
	int buffer;

	if (!is_defined(slots, slot))
		return refused(error, CCPLANE_NO_SLOT, slot);
	to = &slots->slot[slot];
	control = slots->control[slot];
	if (image[CCPLANE_SHAPE / 8] != to->shape)
		return refused(error, CCPLANE_OTHER_SHAPE, slot);
	for (buffer = 0; buffer < CCPLANE_BUFFERS; buffer++)
		if (ccplane_u32(to->images[buffer], CCPLANE_UID) == ccplane_u32(image, CCPLANE_UID))
			return refused(error, CCPLANE_SAME_UID, slot);
	buffer = free_buffer(to, control);
	if (buffer < 0)
		return refused(error, CCPLANE_SLOT_BUSY, slot);
	*replaced = to->images[buffer] == ccplane_no_image ? NULL : to->images[buffer];
	to->images[buffer] = image;
	if (canary)
		slots->control[slot] = part(ccplane_part(control, ACTIVE), ACTIVE) | part(buffer, CANARY) |
				       part(ccplane_part(control, LAST_GOOD), LAST_GOOD) | (uint64_t)share << SHARE;
	else
		slots->control[slot] = activated(control, buffer);
	return 0;
}

int ccplane_slot_share(struct ccplane_slots *slots, uint8_t slot, uint16_t share, struct ccplane_error *error)
{
	uint64_t *control;

	if (!is_defined(slots, slot))
		return refused(error, CCPLANE_NO_SLOT, slot);
	control = &slots->control[slot];
	if (ccplane_part(*control, CANARY) < 0)
		return refused(error, CCPLANE_NO_SNAPSHOT, slot);
	*control = (*control & ~((uint64_t)0xffff << SHARE)) | (uint64_t)share << SHARE;
	return 0;
}

int ccplane_slot_promote(struct ccplane_slots *slots, uint8_t slot, struct ccplane_error *error)
{
	int canary;

	if (!is_defined(slots, slot))
		return refused(error, CCPLANE_NO_SLOT, slot);
	canary = ccplane_part(slots->control[slot], CANARY);
	if (canary < 0)
		return refused(error, CCPLANE_NO_SNAPSHOT, slot);
	slots->control[slot] = activated(slots->control[slot], canary);
	return 0;
}

int ccplane_slot_rollback(struct ccplane_slots *slots, uint8_t slot, const uint64_t **dropped,
			  struct ccplane_error *error)
{
	uint64_t control;
	int gone, active, good;

	if (!is_defined(slots, slot))
		return refused(error, CCPLANE_NO_SLOT, slot);
	control = slots->control[slot];
	active = ccplane_part(control, ACTIVE);
	gone = ccplane_part(control, CANARY);
	good = ccplane_part(control, LAST_GOOD);
	if (gone >= 0) {
		slots->control[slot] = part(active, ACTIVE) | part(good, LAST_GOOD);
	} else if (good >= 0) {
		gone = active;
		slots->control[slot] = part(good, ACTIVE);
	} else {
		return refused(error, CCPLANE_NO_SNAPSHOT, slot);
	}
	*dropped = NULL;
	/* What was taken back also lets go of the flows that are pinned to it. */
	if (gone >= 0 && !has_part(slots->control[slot], gone)) {
		*dropped = slots->slot[slot].images[gone];
		slots->slot[slot].images[gone] = ccplane_no_image;
	}
	return 0;
}
