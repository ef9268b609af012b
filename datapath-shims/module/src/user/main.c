// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The module's interpreter as a process: requests come in on standard input, answers go out on standard output. Both
 * are a count of 64-bit words, and the words. user.rs says what they mean.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "vm.h"

#define MAX_PROGRAMS 64
#define MAX_IMAGES 256
#define MAX_FIELDS 1024

enum request { VERIFY, SCRIPT, TIME_PROGRAM, NETWORK, CHECK_IMAGE, TABLES, LIMITS, SLOTS };
enum step { END, INVOKE, UPDATE, SET_PROGRAM, PUSH, PROMOTE, ROLLBACK, SEGMENT_SIZE };
enum command { DEFINE, PUSH_IDLE, SET_SHARE, PROMOTE_CANARY, ROLL_BACK };

extern int8_t ccplane_table_w8[16 * 2048];
extern int16_t ccplane_table_w16[16 * 2050];

static uint64_t *in, *in_end, *out;
static size_t out_words, out_room;

static _Noreturn void die(const char *what, const struct ccplane_error *error)
{
	if (error)
		fprintf(stderr, "%s: %s %u: %s\n", what, ccplane_place_text(error->place), error->index,
			ccplane_code_text(error->code));
	else
		fprintf(stderr, "%s\n", what);
	exit(1);
}

static void *allocate(size_t bytes)
{
	/* An access behind the end of nothing is one, too. */
	void *memory = malloc(bytes ? bytes : 1);

	if (!memory)
		die("out of memory", NULL);
	return memory;
}

static uint64_t get(void)
{
	if (in == in_end)
		die("the request ends early", NULL);
	return *in++;
}

static const uint64_t *get_words(size_t n)
{
	const uint64_t *words = in;

	if ((size_t)(in_end - in) < n)
		die("the request ends early", NULL);
	in += n;
	return words;
}

static void put(uint64_t word)
{
	if (out_words == out_room) {
		out_room = out_room ? 2 * out_room : 4096;
		out = realloc(out, out_room * sizeof(*out));
		if (!out)
			die("out of memory", NULL);
	}
	out[out_words++] = word;
}

static void put_error(const struct ccplane_error *error)
{
	put(error->code);
	put(error->place);
	put(error->index);
}

/* Memory that begins and ends where the bytes do, so that a read beyond them is found. */
static uint8_t *get_bytes(size_t *len)
{
	uint8_t *bytes;

	*len = get();
	bytes = allocate(*len);
	memcpy(bytes, get_words((*len + 7) / 8), *len);
	return bytes;
}

/* A program in as little memory as it needs; NULL with *error where it is refused. */
static struct ccplane_prog *get_prog(struct ccplane_error *error)
{
	size_t len;
	uint8_t *bytes = get_bytes(&len);
	struct ccplane_prog *room = allocate(CCPLANE_PROG_BYTES), *prog = NULL;

	/* Whatever was there before is no matter. */
	memset(room, 0xa5, CCPLANE_PROG_BYTES);
	if (!ccplane_prog_verify(bytes, len, room, error)) {
		prog = allocate(ccplane_prog_bytes(room));
		memcpy(prog, room, ccplane_prog_bytes(room));
	}
	free(room);
	free(bytes);
	return prog;
}

static uint64_t random_word(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* A program is verified, and if it is one, runs a while on any numbers at all. */
static void verify(void)
{
	struct ccplane_error error = { 0, 0, 0 };
	uint64_t runs = get(), state = get() | 1;
	struct ccplane_prog *prog = get_prog(&error);

	put_error(&error);
	if (prog) {
		struct ccplane_flow *flow = allocate(CCPLANE_FLOW_BYTES);

		ccplane_flow_init(flow, 14480);
		ccplane_flow_start(prog, flow, 0);
		while (runs--) {
			struct ccplane_prims prims;
			unsigned int n;

			for (n = 0; n < CCPLANE_PRIMS; n++)
				prims.value[n] = (int64_t)random_word(&state) >> (random_word(&state) & 63);
			if (ccplane_prog_invoke(prog, flow, &prims, NULL, 1) & CCPLANE_REPORTED)
				ccplane_flow_reported(prog, flow);
		}
		if (ccplane_flow_cwnd(flow) <= 0 || ccplane_flow_rate(flow) < 0)
			die("a window or rate that is no decision", NULL);
		free(flow);
	}
	free(prog);
}

/* A field update that waits for the next ACK. */
struct pending {
	enum ccplane_field field;
	uint8_t reg;
	int64_t value;
};

struct script {
	struct ccplane_prog *progs[MAX_PROGRAMS];
	const uint64_t *images[MAX_IMAGES];
	size_t image_words[MAX_IMAGES];
	struct ccplane_slots slots;
	struct ccplane_flow *flow;
	struct pending pending[MAX_FIELDS];
	size_t programs, fields;
	uint64_t key, current;
	uint32_t first_mss_bytes, mss_bytes, told_mss_bytes;
	bool start, native;
};

static void put_observation(const struct ccplane_prog *prog, const struct ccplane_flow *flow)
{
	const struct ccplane_flow_policy *policy = &flow->policy;
	unsigned int n;

	for (n = 0; n < prog->regs; n++)
		put((uint64_t)ccplane_flow_regs(flow)[n]);
	put((uint64_t)ccplane_flow_cwnd(flow));
	put((uint64_t)ccplane_flow_rate(flow));
	put(flow->faults);
	for (n = 0; n < prog->policy_inputs; n++)
		put((uint32_t)flow->histories[n]);
	put((uint64_t)ccplane_flow_action(flow));
	put(ccplane_flow_snapshot(flow));
	put(policy->noise);
	put(policy->uid);
	put(policy->buffer);
	put(policy->level);
	put(policy->level_uid);
	put(policy->penalty);
	put(policy->decisions);
	put(policy->saturated);
	put(policy->clipped);
	put(policy->collapsed);
	put(policy->trips);
}

static void get_fields(struct script *script)
{
	uint64_t n = get();

	while (n--) {
		struct pending *field = &script->pending[script->fields++];

		if (script->fields > MAX_FIELDS)
			die("more fields than wait at once", NULL);
		field->field = (enum ccplane_field)get();
		field->reg = (uint8_t)get();
		field->value = (int64_t)get();
	}
}

/* Registers of the old program that were staged before are void. */
static void set_program(struct script *script)
{
	size_t n, kept = 0;

	script->current = get();
	if (script->current >= script->programs)
		die("no such program", NULL);
	for (n = 0; n < script->fields; n++)
		if (script->pending[n].field != CCPLANE_FIELD_REG)
			script->pending[kept++] = script->pending[n];
	script->fields = kept;
	script->start = true;
	get_fields(script);
}

static void get_prims(struct ccplane_prims *prims)
{
	unsigned int n;

	for (n = 0; n < CCPLANE_PRIMS; n++)
		prims->value[n] = (int64_t)get();
}

static void invoke(struct script *script)
{
	const struct ccplane_prog *prog = script->progs[script->current];
	struct ccplane_flow *flow = script->flow;
	struct ccplane_prims prims;
	uint32_t outcome = 0;
	size_t n;

	get_prims(&prims);
	if (script->start) {
		ccplane_flow_start(prog, flow, prims.value[CCPLANE_ACK_NOW]);
		script->start = script->native = false;
		script->told_mss_bytes = script->first_mss_bytes;
	}
	if (!script->native) {
		for (n = 0; n < script->fields; n++)
			ccplane_flow_set(prog, flow, script->pending[n].field, script->pending[n].reg,
					 script->pending[n].value);
		script->fields = 0;
		ccplane_flow_follow_mss(prog, flow, &script->told_mss_bytes, script->mss_bytes);
		outcome = ccplane_prog_invoke(prog, flow, &prims, &script->slots, script->key);
		script->native = outcome & CCPLANE_LEFT;
	}
	put(outcome);
	put(script->native);
	if (outcome & CCPLANE_REPORTED) {
		for (n = 0; n < prog->report_len; n++)
			put((uint64_t)ccplane_flow_regs(flow)[n]);
		ccplane_flow_reported(prog, flow);
	}
	put_observation(prog, flow);
}

static void push(struct script *script)
{
	uint8_t slot = (uint8_t)get();
	uint64_t image = get(), canary = get(), share = get();
	struct ccplane_error error;
	const uint64_t *replaced = NULL;
	uint64_t *words;
	size_t bytes;

	if (image >= MAX_IMAGES || slot >= CCPLANE_MAX_POLICY_SLOTS)
		die("no such image or slot", NULL);
	bytes = 8 * script->image_words[image];
	words = allocate(bytes);
	memcpy(words, script->images[image], bytes);
	if (ccplane_image_prepare(script->slots.slot[slot].shape, words, bytes, &error) ||
	    ccplane_slot_push(&script->slots, slot, words, canary, (uint16_t)share, &replaced, &error))
		die("push", &error);
	/* Who still decides by it is found out. */
	free((void *)(uintptr_t)replaced);
}

static void rollback(struct script *script)
{
	struct ccplane_error error;
	const uint64_t *dropped = NULL;

	if (ccplane_slot_rollback(&script->slots, (uint8_t)get(), &dropped, &error))
		die("rollback", &error);
	free((void *)(uintptr_t)dropped);
}

static void free_images(const struct ccplane_slots *slots)
{
	size_t slot, n;

	for (slot = 0; slot < CCPLANE_MAX_POLICY_SLOTS; slot++)
		for (n = 0; n < CCPLANE_BUFFERS; n++)
			if (slots->slot[slot].images[n] != ccplane_no_image)
				free((void *)(uintptr_t)slots->slot[slot].images[n]);
}

static void end_script(struct script *script)
{
	size_t n;

	free_images(&script->slots);
	for (n = 0; n < script->programs; n++)
		free(script->progs[n]);
	free(script->flow);
}

static void begin_script(struct script *script)
{
	struct ccplane_error error = { 0, 0, 0 };
	size_t n, count;

	memset(script, 0, sizeof(*script));
	ccplane_slots_init(&script->slots);
	script->key = get();
	script->flow = allocate(CCPLANE_FLOW_BYTES);
	ccplane_flow_init(script->flow, (int64_t)get());
	script->first_mss_bytes = script->told_mss_bytes = script->mss_bytes = (uint32_t)get();
	script->start = true;
	for (count = get(); count; count--) {
		uint8_t slot = (uint8_t)get();

		if (ccplane_slot_define(&script->slots, slot, get(), &error))
			die("define", &error);
	}
	script->programs = get();
	if (script->programs > MAX_PROGRAMS)
		die("too many programs", NULL);
	for (n = 0; n < script->programs; n++) {
		script->progs[n] = get_prog(&error);
		if (!script->progs[n] || ccplane_prog_check_slots(script->progs[n], &script->slots, &error))
			die("install", &error);
	}
	count = get();
	if (count > MAX_IMAGES)
		die("too many images", NULL);
	for (n = 0; n < count; n++) {
		script->image_words[n] = get();
		script->images[n] = get_words(script->image_words[n]);
	}
}

static void run_script(void)
{
	static struct script script;
	struct ccplane_error error;
	uint64_t step;

	begin_script(&script);
	while ((step = get()) != END) {
		switch ((enum step)step) {
		case INVOKE:
			invoke(&script);
			break;
		case UPDATE:
			get_fields(&script);
			break;
		case SET_PROGRAM:
			set_program(&script);
			break;
		case PUSH:
			push(&script);
			break;
		case PROMOTE:
			if (ccplane_slot_promote(&script.slots, (uint8_t)get(), &error))
				die("promote", &error);
			break;
		case ROLLBACK:
			rollback(&script);
			break;
		case SEGMENT_SIZE:
			script.mss_bytes = (uint32_t)get();
			break;
		default:
			die("an unknown step", NULL);
		}
	}
	end_script(&script);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A program on a stream of ACKs that comes round again, gap_us apart. */
static void time_program(void)
{
	struct ccplane_error error;
	struct script script = { 0 };
	uint64_t cwnd_bytes = get(), gap_us = get(), times = get(), acks, n, start_ns;
	struct ccplane_prog *prog = get_prog(&error);
	struct ccplane_prims *stream;
	int64_t *first_us;

	if (!prog)
		die("install", &error);
	get_fields(&script);
	acks = get();
	stream = allocate(acks * sizeof(*stream));
	first_us = allocate(acks * sizeof(*first_us));
	for (n = 0; n < acks; n++) {
		get_prims(&stream[n]);
		first_us[n] = stream[n].value[CCPLANE_ACK_NOW];
	}
	script.flow = allocate(CCPLANE_FLOW_BYTES);
	ccplane_flow_init(script.flow, (int64_t)cwnd_bytes);
	ccplane_flow_start(prog, script.flow, stream[0].value[CCPLANE_ACK_NOW] + (int64_t)gap_us);
	for (n = 0; n < script.fields; n++)
		ccplane_flow_set(prog, script.flow, script.pending[n].field, script.pending[n].reg, script.pending[n].value);
	start_ns = now_ns();
	for (n = 0; n < times; n++) {
		struct ccplane_prims *prims = &stream[n % acks];

		prims->value[CCPLANE_ACK_NOW] = first_us[n % acks] + (int64_t)((n + 1) * gap_us);
		if (ccplane_prog_invoke(prog, script.flow, prims, NULL, 1) & CCPLANE_REPORTED)
			ccplane_flow_reported(prog, script.flow);
	}
	put(now_ns() - start_ns);
	put_observation(prog, script.flow);
	free(script.flow);
	free(first_us);
	free(stream);
	free(prog);
}

static uint64_t *get_image(size_t *words)
{
	uint64_t *image;

	*words = get();
	image = allocate(8 * *words);
	memcpy(image, get_words(*words), 8 * *words);
	return image;
}

/* A network on each row of inputs, then again and again, against the clock. */
static void network(void)
{
	struct ccplane_error error;
	uint64_t times = get(), shape = get(), rows, n, i, start_ns;
	unsigned int width = ccplane_shape_inputs(shape);
	volatile int64_t last = 0;
	uint32_t clipped = 0;
	size_t words;
	uint64_t *image = get_image(&words);
	int32_t *inputs;

	if (ccplane_image_prepare(shape, image, 8 * words, &error))
		die("image", &error);
	rows = get();
	inputs = allocate(rows * width * sizeof(*inputs));
	for (n = 0; n < rows; n++) {
		for (i = 0; i < width; i++)
			inputs[n * width + i] = (int32_t)(uint32_t)get();
		put((uint64_t)ccplane_image_infer(image, inputs + n * width, &clipped));
		put(clipped);
	}
	start_ns = now_ns();
	for (n = 0; n < times; n++)
		last = ccplane_image_infer(image, inputs + n % rows * width, &clipped);
	put(now_ns() - start_ns);
	(void)last;
	free(inputs);
	free(image);
}

/* Whether words are an image; one that is runs on inputs of 0. */
static void check_image(void)
{
	struct ccplane_error error = { 0, 0, 0 };
	int32_t inputs[CCPLANE_MAX_POLICY_INPUTS] = { 0 };
	uint64_t shape = get(), action = 0;
	uint32_t clipped;
	size_t words;
	uint64_t *image = get_image(&words);

	if (!ccplane_image_prepare(shape, image, 8 * words, &error))
		action = (uint64_t)ccplane_image_infer(image, inputs, &clipped);
	put_error(&error);
	put(ccplane_shape_image_bytes(shape));
	put(action);
	free(image);
}

/* The agent's commands on slots, each with the refusal; images have but a head. */
static void command_slots(void)
{
	struct ccplane_slots slots;
	uint64_t count, n;

	ccplane_slots_init(&slots);
	for (count = get(); count; count--) {
		struct ccplane_error error = { 0, 0, 0 };
		enum command command = (enum command)get();
		uint8_t slot = (uint8_t)get();
		uint64_t value = get(), canary = get(), share = get();
		const uint64_t *gone = NULL;
		uint64_t *image = NULL;

		switch (command) {
		case DEFINE:
			ccplane_slot_define(&slots, slot, value, &error);
			break;
		case PUSH_IDLE:
			image = allocate(8 * CCPLANE_IMAGE_HEAD_WORDS);
			memset(image, 0, 8 * CCPLANE_IMAGE_HEAD_WORDS);
			image[0] = (uint32_t)value;
			image[CCPLANE_SHAPE / 8] = get();
			if (ccplane_slot_push(&slots, slot, image, canary, (uint16_t)share, &gone, &error))
				free(image);
			break;
		case SET_SHARE:
			ccplane_slot_share(&slots, slot, (uint16_t)share, &error);
			break;
		case PROMOTE_CANARY:
			ccplane_slot_promote(&slots, slot, &error);
			break;
		case ROLL_BACK:
			ccplane_slot_rollback(&slots, slot, &gone, &error);
			break;
		default:
			die("an unknown command", NULL);
		}
		free((void *)(uintptr_t)gone);
		put(error.code);
		/* The parts' uids, as the agent sees them. */
		for (n = 0; n < 3; n++) {
			int buffer = ccplane_part(slots.control[slot % CCPLANE_MAX_POLICY_SLOTS], 8 * (unsigned int)n);

			put(buffer < 0 ? 0 :
				ccplane_u32(slots.slot[slot % CCPLANE_MAX_POLICY_SLOTS].images[buffer], CCPLANE_UID));
		}
		put(slots.control[slot % CCPLANE_MAX_POLICY_SLOTS] >> 32);
	}
	free_images(&slots);
}

static void limits(void)
{
	static const int64_t all[] = {
		CCPLANE_MAX_REGS, CCPLANE_MAX_TMPS, CCPLANE_MAX_INSTS, CCPLANE_MAX_CLAUSES, CCPLANE_MAX_HISTORIES,
		CCPLANE_MAX_HISTORY_DEPTH, CCPLANE_MAX_POLICY_INPUTS, CCPLANE_MAX_POLICY_SLOTS,
		CCPLANE_MAX_REG_NAME_BYTES, CCPLANE_MAX_WIDTH, CCPLANE_MAX_LAYERS, CCPLANE_MAX_IMAGE_BYTES,
		CCPLANE_INFINITY, CCPLANE_MAX_CWND_BYTES, CCPLANE_MAX_RATE_BYTES_PER_S, CCPLANE_PRIMS,
		CCPLANE_BUFFERS, sizeof(struct ccplane_prog), sizeof(struct ccplane_flow),
	};
	size_t n;

	for (n = 0; n < sizeof(all) / sizeof(all[0]); n++)
		put((uint64_t)all[n]);
}

static void tables(void)
{
	size_t n;

	for (n = 0; n < sizeof(ccplane_table_w8); n++)
		put((uint64_t)(int64_t)ccplane_table_w8[n]);
	for (n = 0; n < sizeof(ccplane_table_w16) / 2; n++)
		put((uint64_t)(int64_t)ccplane_table_w16[n]);
}

static void answer(void)
{
	while (in != in_end) {
		switch ((enum request)get()) {
		case VERIFY:
			verify();
			break;
		case SCRIPT:
			run_script();
			break;
		case TIME_PROGRAM:
			time_program();
			break;
		case NETWORK:
			network();
			break;
		case CHECK_IMAGE:
			check_image();
			break;
		case TABLES:
			tables();
			break;
		case LIMITS:
			limits();
			break;
		case SLOTS:
			command_slots();
			break;
		default:
			die("an unknown request", NULL);
		}
	}
}

int main(void)
{
	uint64_t words;

	ccplane_tables_init();
	while (fread(&words, sizeof(words), 1, stdin) == 1) {
		uint64_t *request = allocate(words * 8);

		if (fread(request, 8, words, stdin) != words)
			die("the request ends early", NULL);
		in = request;
		in_end = request + words;
		out_words = 0;
		answer();
		words = out_words;
		fwrite(&words, sizeof(words), 1, stdout);
		fwrite(out, 8, out_words, stdout);
		fflush(stdout);
		free(request);
	}
	free(out);
	return 0;
}
