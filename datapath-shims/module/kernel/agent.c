// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* One opener of the device: its programs, its policy slots, and the commands that it writes. */
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "module.h"

/* Room for one answer; no text of ours is longer than TEXT_BYTES. */
#define TEXT_BYTES 160
#define ANSWER_BYTES (CCPLANE_HEADER_BYTES + TEXT_BYTES + 16)
/* Room for the longest answer, that to GET_SLOTS, without which no command is taken. */
#define SLOTS_BYTES 4096

static atomic64_t agents_so_far;

struct ccplane_agent *ccplane_agent_open(struct net *net)
{
	struct ccplane_agent *agent = kzalloc(sizeof(*agent), GFP_KERNEL_ACCOUNT);

	if (!agent)
		return NULL;
	mutex_init(&agent->mutex);
	mutex_init(&agent->ring_mutex);
	INIT_LIST_HEAD(&agent->programs);
	spin_lock_init(&agent->ring_lock);
	init_waitqueue_head(&agent->wait);
	agent->number = (u64)atomic64_inc_return(&agents_so_far);
	agent->net = get_net(net);
	agent->policies = ccplane_policies_new();
	agent->command = kvmalloc(CCPLANE_MAX_FRAME_BYTES, GFP_KERNEL_ACCOUNT);
	agent->frame = kvmalloc(CCPLANE_MAX_FRAME_BYTES, GFP_KERNEL_ACCOUNT);
	agent->scratch = kvmalloc(CCPLANE_PROG_BYTES, GFP_KERNEL_ACCOUNT);
	atomic_inc(&ccplane_counters.agents);
	if (!agent->policies || !agent->command || !agent->frame || !agent->scratch ||
	    ccplane_ring_init(&agent->ring, ccplane_ring_bytes)) {
		ccplane_agent_close(agent);
		return NULL;
	}
	return agent;
}

static void leave(struct ccplane_agent *agent, bool release)
{
	struct ccplane_program *program, *next;

	if (agent->attached)
		ccplane_flows_detach(agent, release);
	agent->attached = false;
	list_for_each_entry_safe(program, next, &agent->programs, list) {
		list_del(&program->list);
		ccplane_program_put(program);
	}
	agent->program_count = 0;
}

void ccplane_agent_close(struct ccplane_agent *agent)
{
	leave(agent, false);
	if (agent->policies)
		ccplane_policies_put(agent->policies);
	ccplane_ring_free(&agent->ring);
	kvfree(agent->scratch);
	kvfree(agent->frame);
	kvfree(agent->command);
	put_net(agent->net);
	mutex_destroy(&agent->ring_mutex);
	mutex_destroy(&agent->mutex);
	kfree(agent);
	atomic_dec(&ccplane_counters.agents);
}

/* The answer to a command: what happened, and what a refusal says. */
struct answer {
	u8 bytes[ANSWER_BYTES];
	struct ccplane_out out;
	size_t start;
};

static void begin(struct answer *answer, u16 type, u32 request)
{
	answer->out = (struct ccplane_out){ .bytes = answer->bytes, .room = sizeof(answer->bytes) };
	answer->start = ccplane_frame_start(&answer->out, type, request);
}

static void send(struct ccplane_agent *agent, struct answer *answer)
{
	ccplane_frame_end(&answer->out, answer->start);
	/* There was room when the command was taken; events may have filled it since. */
	if (!ccplane_tell(agent, &answer->out))
		atomic64_inc(&ccplane_counters.dropped);
}

static struct ccplane_out *refuse(struct answer *answer, u32 request, u8 reason)
{
	atomic64_inc(&ccplane_counters.refused);
	begin(answer, CCPLANE_REFUSED, request);
	ccplane_put_u8(&answer->out, reason);
	return &answer->out;
}

static void refuse_memory(struct answer *answer, u32 request, const char *what)
{
	struct ccplane_out *out = refuse(answer, request, CCPLANE_WHY_OS);

	ccplane_put_u8(out, CCPLANE_OS_OUT_OF_MEMORY);
	ccplane_put_text(out, what);
}

/* A refusal of program.c, infer.c or slots.c. */
static void refuse_error(struct answer *answer, u32 request, u8 slot, const struct ccplane_error *error)
{
	char text[TEXT_BYTES];
	struct ccplane_out *out;

	switch (error->code) {
	case CCPLANE_NO_SLOT:
		ccplane_put_u8(refuse(answer, request, CCPLANE_WHY_NO_SLOT),
			       error->place == CCPLANE_AT_SLOT ? (u8)error->index : slot);
		return;
	case CCPLANE_OTHER_SHAPE:
	case CCPLANE_IMAGE_SHAPE:
		ccplane_put_u8(refuse(answer, request, CCPLANE_WHY_OTHER_SHAPE), slot);
		return;
	case CCPLANE_SLOT_BUSY:
		ccplane_put_u8(refuse(answer, request, CCPLANE_WHY_SLOT_BUSY), slot);
		return;
	case CCPLANE_NO_SNAPSHOT:
		out = refuse(answer, request, CCPLANE_WHY_NO_SNAPSHOT);
		ccplane_put_u8(out, slot);
		ccplane_put_u8(out, 0);
		return;
	default:
		break;
	}
	if (error->place == CCPLANE_AT_WHOLE)
		strscpy(text, ccplane_code_text(error->code), sizeof(text));
	else
		snprintf(text, sizeof(text), "%s at %s %u", ccplane_code_text(error->code),
			 ccplane_place_text(error->place), error->index);
	if (error->code >= CCPLANE_IMAGE_LENGTH && error->code < CCPLANE_BAD_SHAPE) {
		ccplane_put_text(refuse(answer, request, CCPLANE_WHY_BAD_IMAGE), text);
		return;
	}
	if (error->code == CCPLANE_SAME_UID) {
		ccplane_put_text(refuse(answer, request, CCPLANE_WHY_BAD_IMAGE), text);
		return;
	}
	out = refuse(answer, request, CCPLANE_WHY_REFUSED);
	ccplane_put_u32(out, error->place == CCPLANE_AT_INST ? error->index : U32_MAX);
	ccplane_put_text(out, text);
}

static struct ccplane_program *find_program(struct ccplane_agent *agent, u32 uid)
{
	struct ccplane_program *program;

	list_for_each_entry(program, &agent->programs, list)
		if (program->uid == uid)
			return program;
	return NULL;
}

/* The agent's slots, which nobody else replaces. */
static const struct ccplane_slots *slots_of(const struct ccplane_agent *agent)
{
	return &rcu_dereference_protected(agent->policies->now, lockdep_is_held(&agent->mutex))->slots;
}

/* Each of these returns whether the command was carried out; if not, the answer says why. */
static bool install(struct ccplane_agent *agent, const struct ccplane_command *command, struct answer *answer)
{
	struct ccplane_program *program;
	struct ccplane_error error;
	struct ccplane_out *out;
	char text[TEXT_BYTES];
	size_t bytes;

	if (ccplane_prog_verify(command->program, command->program_bytes, agent->scratch, &error) ||
	    ccplane_prog_check_slots(agent->scratch, slots_of(agent), &error)) {
		refuse_error(answer, command->request, 0, &error);
		return false;
	}
	if (find_program(agent, command->uid)) {
		snprintf(text, sizeof(text), "a program is already installed as %u", command->uid);
		out = refuse(answer, command->request, CCPLANE_WHY_REFUSED);
		ccplane_put_u32(out, U32_MAX);
		ccplane_put_text(out, text);
		return false;
	}
	if (agent->program_count >= ccplane_max_programs) {
		ccplane_put_u32(refuse(answer, command->request, CCPLANE_WHY_PROGRAMS_FULL), ccplane_max_programs);
		return false;
	}
	bytes = ccplane_prog_bytes(agent->scratch);
	program = kvmalloc(offsetof(struct ccplane_program, prog) + bytes, GFP_KERNEL_ACCOUNT);
	if (!program) {
		refuse_memory(answer, command->request, "hold the program");
		return false;
	}
	memcpy(&program->prog, agent->scratch, bytes);
	refcount_set(&program->refs, 1);
	program->agent = agent->number;
	program->uid = command->uid;
	program->policies = agent->policies;
	refcount_inc(&agent->policies->refs);
	list_add_tail(&program->list, &agent->programs);
	agent->program_count++;
	atomic_inc(&ccplane_counters.programs);
	return true;
}

static bool refuse_program(struct answer *answer, const struct ccplane_command *command)
{
	ccplane_put_u32(refuse(answer, command->request, CCPLANE_WHY_NO_PROGRAM), command->uid);
	return false;
}

static bool remove(struct ccplane_agent *agent, const struct ccplane_command *command, struct answer *answer)
{
	struct ccplane_program *program = find_program(agent, command->uid);
	struct ccplane_out *out;
	u32 users;

	if (!program)
		return refuse_program(answer, command);
	users = ccplane_flow_count_users(program);
	if (users) {
		out = refuse(answer, command->request, CCPLANE_WHY_PROGRAM_IN_USE);
		ccplane_put_u32(out, command->uid);
		ccplane_put_u32(out, users);
		return false;
	}
	list_del(&program->list);
	agent->program_count--;
	ccplane_program_put(program);
	return true;
}

/* The first field that the program does not have, or none. */
static bool has_fields(const struct ccplane_program *program, const struct ccplane_command *command,
		       struct ccplane_field_value *bad)
{
	unsigned int n;

	for (n = 0; n < command->fields; n++) {
		*bad = ccplane_command_field(command, n);
		if (bad->where == 0 && !ccplane_field_ok(program ? &program->prog : NULL, CCPLANE_FIELD_REG, bad->reg))
			return false;
	}
	return true;
}

/* Stages a program with its fields (start), fields alone, or a release. */
static bool stage(struct ccplane_agent *agent, const struct ccplane_command *command, struct answer *answer)
{
	bool release = command->type == CCPLANE_RELEASE, starts = command->type == CCPLANE_SET_PROGRAM;
	struct ccplane_program *program = NULL, *before = NULL;
	struct ccplane_field_value bad;
	struct ccplane_tcp_flow *flow;
	struct ccplane_out *out;
	bool is_known = false, fits = false;

	if (starts) {
		program = find_program(agent, command->uid);
		if (!program)
			return refuse_program(answer, command);
	}
	spin_lock_bh(&ccplane_table_lock);
	rcu_read_lock();
	flow = ccplane_flow_find(command->flow);
	if (flow && rcu_access_pointer(flow->agent) == agent) {
		is_known = true;
		if (!starts)
			program = flow->set;
		fits = has_fields(program, command, &bad);
	}
	if (fits && (starts || release)) {
		before = flow->set;
		flow->set = starts ? ccplane_program_get(program) : NULL;
		ccplane_flow_stage(flow, starts ? ccplane_program_get(program) : NULL, release, flow->set, command);
	} else if (fits && program) {
		ccplane_flow_stage(flow, NULL, false, program, command);
	}
	rcu_read_unlock();
	spin_unlock_bh(&ccplane_table_lock);
	ccplane_program_put(before);
	if (fits)
		return true;
	if (!is_known) {
		ccplane_put_u64(refuse(answer, command->request, CCPLANE_WHY_NO_FLOW), command->flow);
		return false;
	}
	out = refuse(answer, command->request, CCPLANE_WHY_BAD_FIELD);
	ccplane_put_u8(out, bad.where);
	ccplane_put_u8(out, bad.reg);
	return false;
}

/* The words of a PUSH, prepared, in memory of their own; NULL, and the answer says why. */
static const u64 *read_image(struct ccplane_agent *agent, const struct ccplane_command *command, struct answer *answer)
{
	size_t bytes = (size_t)command->words * 8;
	struct ccplane_error error = { .code = CCPLANE_NO_SLOT, .place = CCPLANE_AT_SLOT, .index = command->slot };
	u64 shape = command->slot < CCPLANE_MAX_POLICY_SLOTS ? slots_of(agent)->slot[command->slot].shape : 0;
	u64 *image;

	if (!shape) {
		refuse_error(answer, command->request, command->slot, &error);
		return NULL;
	}
	image = kvmalloc(max_t(size_t, bytes, 8), GFP_KERNEL_ACCOUNT);
	if (!image) {
		refuse_memory(answer, command->request, "hold the image");
		return NULL;
	}
	memcpy(image, command->image, bytes);
	if (ccplane_image_prepare(shape, image, bytes, &error)) {
		refuse_error(answer, command->request, command->slot, &error);
		kvfree(image);
		return NULL;
	}
	return image;
}

static int change(struct ccplane_slots *slots, const struct ccplane_command *command, const u64 *image, const u64 **gone,
		  struct ccplane_error *error)
{
	switch (command->type) {
	case CCPLANE_DEFINE_SLOT:
		return ccplane_slot_define(slots, command->slot, command->shape, error);
	case CCPLANE_PUSH:
		return ccplane_slot_push(slots, command->slot, image, command->canary, command->share, gone, error);
	case CCPLANE_SHARE:
		return ccplane_slot_share(slots, command->slot, command->share, error);
	case CCPLANE_PROMOTE:
		return ccplane_slot_promote(slots, command->slot, error);
	default:
		return ccplane_slot_rollback(slots, command->slot, gone, error);
	}
}

static bool change_slots(struct ccplane_agent *agent, const struct ccplane_command *command, struct answer *answer)
{
	struct ccplane_policies *policies = agent->policies;
	struct ccplane_slots_rcu *before, *after;
	struct ccplane_error error;
	const u64 *image = NULL, *gone = NULL;

	if (command->type == CCPLANE_PUSH) {
		image = read_image(agent, command, answer);
		if (!image)
			return false;
	}
	before = rcu_dereference_protected(policies->now, lockdep_is_held(&agent->mutex));
	after = kmalloc(sizeof(*after), GFP_KERNEL_ACCOUNT);
	if (!after) {
		kvfree(image);
		refuse_memory(answer, command->request, "hold the slots");
		return false;
	}
	after->slots = before->slots;
	if (change(&after->slots, command, image, &gone, &error)) {
		kfree(after);
		kvfree(image);
		refuse_error(answer, command->request, command->slot, &error);
		return false;
	}
	rcu_assign_pointer(policies->now, after);
	/* No decision still reads what was there. */
	if (gone)
		synchronize_rcu();
	kvfree(gone);
	kfree_rcu(before, rcu);
	return true;
}

static int welcome(struct ccplane_agent *agent, const struct ccplane_command *command)
{
	int error;

	if (agent->attached)
		return 0;
	if (command->ring_bytes && !agent->mapped)
		return -EBADMSG;
	agent->timeout_us = (u64)(ccplane_timeout_ms ? ccplane_timeout_ms : command->heartbeat_timeout_ms) * USEC_PER_MSEC;
	agent->beat_us = ccplane_now_us();
	error = ccplane_flows_attach(agent);
	WRITE_ONCE(agent->attached, !error);
	return error;
}

/* One command. An error ends the conversation. */
static int carry_out(struct ccplane_agent *agent, const struct ccplane_command *command)
{
	struct answer answer;
	bool done;

	if (command->type == CCPLANE_WELCOME)
		return welcome(agent, command);
	if (!agent->attached)
		return -EBADMSG;
	switch (command->type) {
	case CCPLANE_INSTALL:
		done = install(agent, command, &answer);
		break;
	case CCPLANE_REMOVE:
		done = remove(agent, command, &answer);
		break;
	case CCPLANE_SET_PROGRAM:
	case CCPLANE_UPDATE:
	case CCPLANE_RELEASE:
		done = stage(agent, command, &answer);
		break;
	case CCPLANE_DEFINE_SLOT:
	case CCPLANE_PUSH:
	case CCPLANE_SHARE:
	case CCPLANE_PROMOTE:
	case CCPLANE_ROLLBACK:
		done = change_slots(agent, command, &answer);
		break;
	case CCPLANE_GET_FLOWS:
		ccplane_list_start(agent, command->request);
		return 0;
	case CCPLANE_GET_SLOTS:
		ccplane_tell_slots(agent, command->request);
		return 0;
	case CCPLANE_HEARTBEAT:
		WRITE_ONCE(agent->beat_us, ccplane_now_us());
		return 0;
	case CCPLANE_BYE:
		leave(agent, command->bye == CCPLANE_BYE_STOPPING);
		return 0;
	default:
		return -EBADMSG;
	}
	if (done && !command->request)
		return 0;
	if (done && command->type == CCPLANE_INSTALL) {
		begin(&answer, CCPLANE_INSTALLED, command->request);
		ccplane_put_u32(&answer.out, command->uid);
	} else if (done) {
		begin(&answer, CCPLANE_DONE, command->request);
	}
	send(agent, &answer);
	return 0;
}

ssize_t ccplane_agent_carry_out(struct ccplane_agent *agent, const u8 *bytes, size_t len)
{
	const u8 *at = bytes;
	size_t left = len;
	struct ccplane_command command;
	int parsed, error;

	while (left) {
		/* Without room for its answer no command is taken: the agent reads first. */
		if (!ccplane_ring_has_room(&agent->ring, SLOTS_BYTES))
			return left < len ? (ssize_t)(len - left) : -EAGAIN;
		parsed = ccplane_command_parse(&at, &left, &command);
		error = parsed < 0 || READ_ONCE(agent->corrupt) ? -EBADMSG : 0;
		if (!error && parsed)
			error = carry_out(agent, &command);
		if (error) {
			if (error == -EBADMSG) {
				atomic64_inc(&ccplane_counters.malformed);
				leave(agent, false);
			}
			return error;
		}
	}
	return (ssize_t)len;
}
