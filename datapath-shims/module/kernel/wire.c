// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Messages of ccplane's protocol, version 2: see wire.h. */
#include "wire.h"

/* Offset of the length in a header. */
#define LEN_AT 8

static const uint8_t *take(struct ccplane_reader *r, size_t bytes)
{
	const uint8_t *at = r->at;

	if (r->bad || bytes > r->left) {
		r->bad = true;
		return NULL;
	}
	r->at += bytes;
	r->left -= bytes;
	return at;
}

static uint64_t take_le(struct ccplane_reader *r, unsigned int bytes)
{
	const uint8_t *at = take(r, bytes);
	uint64_t v = 0;
	unsigned int n;

	for (n = 0; at && n < bytes; n++)
		v |= (uint64_t)at[n] << (8 * n);
	return v;
}

static uint8_t take_u8(struct ccplane_reader *r)
{
	return (uint8_t)take_le(r, 1);
}

static uint16_t take_u16(struct ccplane_reader *r)
{
	return (uint16_t)take_le(r, 2);
}

static uint32_t take_u32(struct ccplane_reader *r)
{
	return (uint32_t)take_le(r, 4);
}

static uint64_t take_u64(struct ccplane_reader *r)
{
	return take_le(r, 8);
}

static void take_fields(struct ccplane_reader *r, struct ccplane_command *command)
{
	command->fields = take_u16(r);
	if (command->fields > CCPLANE_MAX_FIELDS)
		r->bad = true;
	command->field = take(r, (size_t)command->fields * CCPLANE_FIELD_BYTES);
}

static void take_image(struct ccplane_reader *r, struct ccplane_command *command)
{
	command->slot = take_u8(r);
	command->canary = take_u8(r) == 1;
	command->share = take_u16(r);
	command->words = take_u16(r);
	command->image = take(r, (size_t)command->words * 8);
}

static void take_welcome(struct ccplane_reader *r, struct ccplane_command *command)
{
	take_u8(r);	/* the minor version, which is ours or older */
	command->heartbeat_timeout_ms = take_u32(r);
	take_u64(r);	/* the session */
	take_u8(r);	/* how to wait: nobody waits here */
	take_u32(r);
	command->ring_bytes = take_u32(r);
	if (!command->heartbeat_timeout_ms)
		r->bad = true;
}

static void take_bye(struct ccplane_reader *r, struct ccplane_command *command)
{
	command->bye = take_u8(r);
	take(r, take_u16(r));
}

/* The body of a command; false if no datapath knows the type. */
static bool take_body(struct ccplane_reader *r, struct ccplane_command *command)
{
	switch (command->type) {
	case CCPLANE_WELCOME:
		take_welcome(r, command);
		return true;
	case CCPLANE_TURNED_AWAY:
		take(r, 9);
		return true;
	case CCPLANE_INSTALL:
		command->uid = take_u32(r);
		command->program_bytes = r->left;
		command->program = take(r, r->left);
		return true;
	case CCPLANE_REMOVE:
		command->uid = take_u32(r);
		return true;
	case CCPLANE_SET_PROGRAM:
		command->flow = take_u64(r);
		command->uid = take_u32(r);
		take_fields(r, command);
		return true;
	case CCPLANE_UPDATE:
		command->flow = take_u64(r);
		take_fields(r, command);
		return true;
	case CCPLANE_RELEASE:
		command->flow = take_u64(r);
		return true;
	case CCPLANE_DEFINE_SLOT:
		command->slot = take_u8(r);
		command->shape = take_u64(r);
		return true;
	case CCPLANE_PUSH:
		take_image(r, command);
		return true;
	case CCPLANE_SHARE:
		command->slot = take_u8(r);
		command->share = take_u16(r);
		return true;
	case CCPLANE_PROMOTE:
	case CCPLANE_ROLLBACK:
		command->slot = take_u8(r);
		return true;
	case CCPLANE_GET_FLOWS:
	case CCPLANE_GET_SLOTS:
		return true;
	case CCPLANE_HEARTBEAT:
		take_u64(r);
		return true;
	case CCPLANE_BYE:
		take_bye(r, command);
		return true;
	default:
		return false;
	}
}

int ccplane_command_parse(const uint8_t **bytes, size_t *len, struct ccplane_command *command)
{
	struct ccplane_reader header = { .at = *bytes, .left = *len };
	struct ccplane_reader body;
	uint8_t minor;
	uint32_t frame;
	bool known;

	memset(command, 0, sizeof(*command));
	if (!*len)
		return 0;
	if (take_u32(&header) != CCPLANE_MAGIC || take_u8(&header) != CCPLANE_MAJOR)
		return -1;
	minor = take_u8(&header);
	command->type = take_u16(&header);
	frame = take_u32(&header);
	command->request = take_u32(&header);
	if (header.bad || frame < CCPLANE_HEADER_BYTES || frame > CCPLANE_MAX_FRAME_BYTES || frame > *len)
		return -1;
	body.at = header.at;
	body.left = frame - CCPLANE_HEADER_BYTES;
	body.bad = false;
	*bytes += frame;
	*len -= frame;
	known = take_body(&body, command);
	if (!known)
		return command->type & CCPLANE_TYPE_OPTIONAL ? 0 : -1;
	/* Only a newer minor version may have appended to the body. */
	return body.bad || (body.left && minor <= CCPLANE_MINOR) ? -1 : 1;
}

struct ccplane_field_value ccplane_command_field(const struct ccplane_command *command, unsigned int n)
{
	struct ccplane_reader r = {
		.at = command->field + (size_t)n * CCPLANE_FIELD_BYTES,
		.left = CCPLANE_FIELD_BYTES,
	};
	struct ccplane_field_value field;

	field.where = take_u8(&r);
	field.reg = take_u8(&r);
	field.value = (int64_t)take_u64(&r);
	return field;
}

size_t ccplane_frame_start(struct ccplane_out *out, uint16_t type, uint32_t request)
{
	size_t start = out->len;

	ccplane_put_u32(out, CCPLANE_MAGIC);
	ccplane_put_u8(out, CCPLANE_MAJOR);
	ccplane_put_u8(out, CCPLANE_MINOR);
	ccplane_put_u16(out, type);
	ccplane_put_u32(out, 0);
	ccplane_put_u32(out, request);
	return start;
}

void ccplane_frame_end(struct ccplane_out *out, size_t start)
{
	size_t end = out->len;

	if (out->full)
		return;
	out->len = start + LEN_AT;
	ccplane_put_u32(out, (uint32_t)(end - start));
	out->len = end;
}

void ccplane_put_text(struct ccplane_out *out, const char *text)
{
	size_t len = strlen(text);

	if (len > CCPLANE_MAX_TEXT_BYTES)
		len = CCPLANE_MAX_TEXT_BYTES;
	ccplane_put_u16(out, (uint16_t)len);
	ccplane_put(out, text, len);
}
