/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * ccplane's protocol, version 2 (agent/wire/src/v2/mod.rs), on a datapath's side: bytes in, bytes out, nothing else.
 *
 * Whatever comes in is bounded: no read passes the end of its frame, no count its limit.
 */
#ifndef CCPLANE_WIRE_H
#define CCPLANE_WIRE_H

#include "platform.h"

#define CCPLANE_MAGIC 0x4c504343u	/* "CCPL" */
#define CCPLANE_MAJOR 2
#define CCPLANE_MINOR 1
#define CCPLANE_HEADER_BYTES 16
#define CCPLANE_MAX_FRAME_BYTES (1 << 16)
#define CCPLANE_MAX_FIELDS 98		/* every register, Cwnd and Rate */
#define CCPLANE_FIELD_BYTES 10
#define CCPLANE_MAX_TEXT_BYTES 1024	/* of a refusal or farewell */
#define CCPLANE_TYPE_OPTIONAL 0x8000	/* who does not know the type may skip it */

enum ccplane_type {
	/* To the agent. */
	CCPLANE_HELLO = 0x01,
	CCPLANE_INSTALLED = 0x02,
	CCPLANE_DONE = 0x03,
	CCPLANE_REFUSED = 0x04,
	CCPLANE_CREATED = 0x05,
	CCPLANE_CLOSED = 0x06,
	CCPLANE_REPORTS = 0x07,
	CCPLANE_FLOW_STATS = 0x08,
	CCPLANE_DROPPED = 0x09,
	CCPLANE_SLOTS = 0x0a,
	CCPLANE_REQUESTED = 0x0b | CCPLANE_TYPE_OPTIONAL,
	/* To the datapath. */
	CCPLANE_WELCOME = 0x41,
	CCPLANE_TURNED_AWAY = 0x42,
	CCPLANE_INSTALL = 0x43,
	CCPLANE_REMOVE = 0x44,
	CCPLANE_SET_PROGRAM = 0x45,
	CCPLANE_UPDATE = 0x46,
	CCPLANE_RELEASE = 0x47,
	CCPLANE_GET_FLOWS = 0x48,
	CCPLANE_DEFINE_SLOT = 0x49,
	CCPLANE_PUSH = 0x4a,
	CCPLANE_SHARE = 0x4b,
	CCPLANE_PROMOTE = 0x4c,
	CCPLANE_ROLLBACK = 0x4d,
	CCPLANE_GET_SLOTS = 0x4e,
	/* Both ways. */
	CCPLANE_HEARTBEAT = 0x81,
	CCPLANE_BYE = 0x82,
};

enum ccplane_bye { CCPLANE_BYE_STOPPING, CCPLANE_BYE_PROTOCOL, CCPLANE_BYE_SILENT };

/* The reasons of REFUSED. */
enum ccplane_reason {
	CCPLANE_WHY_UNSUPPORTED = 1,
	CCPLANE_WHY_PROGRAMS_FULL,
	CCPLANE_WHY_NO_PROGRAM,
	CCPLANE_WHY_PROGRAM_IN_USE,
	CCPLANE_WHY_NO_FLOW,
	CCPLANE_WHY_BAD_FIELD,
	CCPLANE_WHY_REFUSED,
	CCPLANE_WHY_OS,
	CCPLANE_WHY_NO_SLOT,
	CCPLANE_WHY_OTHER_SHAPE,
	CCPLANE_WHY_NO_SNAPSHOT,
	CCPLANE_WHY_SLOT_BUSY,
	CCPLANE_WHY_BAD_IMAGE,
};
/* The kinds of errors of the system that a refusal names. */
#define CCPLANE_OS_OTHER 0
#define CCPLANE_OS_OUT_OF_MEMORY 13

/* The unread rest of a message; once `bad`, every read gives 0. */
struct ccplane_reader {
	const uint8_t *at;
	size_t left;
	bool bad;
};

/* Bytes in the making; once `full`, nothing more is written. */
struct ccplane_out {
	uint8_t *bytes;
	size_t len;
	size_t room;
	bool full;
};

/* A field of an update, as it came. */
struct ccplane_field_value {
	uint8_t where;	/* 0 register, 1 window, 2 rate */
	uint8_t reg;
	int64_t value;
};

/* One command. Pointers are into the bytes that were parsed. */
struct ccplane_command {
	uint16_t type;
	uint32_t request;
	uint64_t flow;
	uint32_t uid;
	uint16_t fields;
	const uint8_t *field;		/* CCPLANE_FIELD_BYTES each */
	const uint8_t *program;
	size_t program_bytes;
	uint8_t slot;
	uint64_t shape;
	bool canary;
	uint16_t share;
	uint16_t words;
	const uint8_t *image;		/* words of 8 bytes, unaligned */
	uint32_t heartbeat_timeout_ms;
	uint32_t ring_bytes;
	uint8_t bye;
};

/*
 * Takes the next frame from *bytes. 1: *command is it; 0: it may be skipped, or nothing is left; -1: it is none, and
 * nothing tells where the next one starts.
 */
int ccplane_command_parse(const uint8_t **bytes, size_t *len, struct ccplane_command *command);
/* The nth field of a command, which has so many. */
struct ccplane_field_value ccplane_command_field(const struct ccplane_command *command, unsigned int n);

static inline void ccplane_put(struct ccplane_out *out, const void *from, size_t bytes)
{
	if (out->full || bytes > out->room - out->len) {
		out->full = true;
		return;
	}
	memcpy(out->bytes + out->len, from, bytes);
	out->len += bytes;
}

static inline void ccplane_put_u8(struct ccplane_out *out, uint8_t v)
{
	ccplane_put(out, &v, sizeof(v));
}

static inline void ccplane_put_le(struct ccplane_out *out, uint64_t v, unsigned int bytes)
{
	uint8_t le[8];
	unsigned int n;

	for (n = 0; n < bytes; n++)
		le[n] = (uint8_t)(v >> (8 * n));
	ccplane_put(out, le, bytes);
}

static inline void ccplane_put_u16(struct ccplane_out *out, uint16_t v)
{
	ccplane_put_le(out, v, 2);
}

static inline void ccplane_put_u32(struct ccplane_out *out, uint32_t v)
{
	ccplane_put_le(out, v, 4);
}

static inline void ccplane_put_u64(struct ccplane_out *out, uint64_t v)
{
	ccplane_put_le(out, v, 8);
}

/* Starts a frame; what is put until ccplane_frame_end is its body. Returns where it starts. */
size_t ccplane_frame_start(struct ccplane_out *out, uint16_t type, uint32_t request);
void ccplane_frame_end(struct ccplane_out *out, size_t start);
/* Puts a text behind its length; of one that is too long, the start. */
void ccplane_put_text(struct ccplane_out *out, const char *text);

#endif
