// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * A ring of one writer and one reader, as datapath-shims/channel/src/ring.rs defines it: lines of eight words, numbered for
 * ever; a record starts with a mark (its line's number, its length), which is written last.
 *
 * The reader may write anything anywhere in it. The writer keeps its own position, and believes the reader's only where it can
 * be true: at worst a reader spoils what it reads itself.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "module.h"

#define LINE 8			/* words */
#define PAYLOAD_BYTES 56	/* of a line, behind its mark */
#define HEAD 0			/* word: lines read so far */
#define ASLEEP LINE		/* word: 1 while the reader sleeps */
#define DATA (2 * LINE)		/* word: the first line of data */
#define LEN_BITS 17

static u64 lines_of(size_t bytes)
{
	return bytes ? DIV_ROUND_UP(bytes, PAYLOAD_BYTES) : 1;
}

static u64 *line_at(const struct ccplane_ring *ring, u64 number)
{
	return ring->words + DATA + (number & (ring->capacity - 1)) * LINE;
}

int ccplane_ring_init(struct ccplane_ring *ring, unsigned int bytes)
{
	ring->bytes = PAGE_ALIGN(DATA * sizeof(u64) + bytes);
	ring->words = vmalloc_user(ring->bytes);
	if (!ring->words)
		return -ENOMEM;
	ring->capacity = bytes / (LINE * sizeof(u64));
	ring->tail = ring->capacity;
	ring->head = ring->capacity;
	return 0;
}

void ccplane_ring_free(struct ccplane_ring *ring)
{
	vfree(ring->words);
}

/* Looks where the reader is: false if it cannot be there. */
static bool look(struct ccplane_ring *ring)
{
	u64 head = smp_load_acquire(&ring->words[HEAD]) + ring->capacity;

	if (head < ring->head || head > ring->tail)
		return false;
	ring->head = head;
	return true;
}

bool ccplane_ring_has_room(const struct ccplane_ring *ring, size_t bytes)
{
	u64 head = READ_ONCE(ring->words[HEAD]) + ring->capacity;

	return ring->tail - head + lines_of(bytes) <= ring->capacity;
}

bool ccplane_ring_is_empty(const struct ccplane_ring *ring)
{
	return READ_ONCE(ring->words[HEAD]) + ring->capacity == READ_ONCE(ring->tail);
}

static void put_line(u64 *line, const u8 *bytes, size_t len)
{
	memcpy(line + 1, bytes, min_t(size_t, len, PAYLOAD_BYTES));
}

int ccplane_ring_write(struct ccplane_ring *ring, const u8 *bytes, size_t len)
{
	u64 need = lines_of(len), number;
	size_t at;

	if (ring->tail - ring->head + need > ring->capacity) {
		if (!look(ring))
			return -EPROTO;
		if (ring->tail - ring->head + need > ring->capacity)
			return -ENOBUFS;
	}
	for (number = 1, at = PAYLOAD_BYTES; number < need; number++, at += PAYLOAD_BYTES)
		put_line(line_at(ring, ring->tail + number), bytes + at, len - at);
	put_line(line_at(ring, ring->tail), bytes, len);
	smp_store_release(line_at(ring, ring->tail), ring->tail << LEN_BITS | len);
	WRITE_ONCE(ring->tail, ring->tail + need);
	return 0;
}

bool ccplane_ring_wakes(struct ccplane_ring *ring)
{
	/* Orders the store of the mark before the load of the flag; the reader has its own between flag and mark. */
	smp_mb();
	if (!READ_ONCE(ring->words[ASLEEP]))
		return false;
	WRITE_ONCE(ring->words[ASLEEP], 0);
	return true;
}

size_t ccplane_ring_read(struct ccplane_ring *ring, u8 *to)
{
	u64 head = ring->words[HEAD] + ring->capacity, mark = smp_load_acquire(line_at(ring, head)), number;
	size_t len = mark & ((1u << LEN_BITS) - 1), at;

	if (head == READ_ONCE(ring->tail) || len > CCPLANE_MAX_FRAME_BYTES)
		return 0;
	for (number = head, at = 0; at < len; number++, at += PAYLOAD_BYTES)
		memcpy(to + at, line_at(ring, number) + 1, min_t(size_t, len - at, PAYLOAD_BYTES));
	smp_store_release(&ring->words[HEAD], ring->words[HEAD] + lines_of(len));
	return len;
}
