// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Runs programs: what agent/program/src/vm.rs says, on cells. */
#include "vm.h"
#include "steps.h"

/* The denominator of ewma's weights. */
#define EWMA_DENOM 10

static CCPLANE_NOINLINE int64_t fault(struct ccplane_flow *flow, int64_t value)
{
	flow->faults++;
	return value;
}

static inline int64_t add(struct ccplane_flow *flow, int64_t a, int64_t b)
{
	int64_t sum;

	if (ccplane_unlikely(__builtin_add_overflow(a, b, &sum)))
		return fault(flow, b < 0 ? INT64_MIN : INT64_MAX);
	return sum;
}

static inline int64_t sub(struct ccplane_flow *flow, int64_t a, int64_t b)
{
	int64_t difference;

	if (ccplane_unlikely(__builtin_sub_overflow(a, b, &difference)))
		return fault(flow, b < 0 ? INT64_MAX : INT64_MIN);
	return difference;
}

static inline int64_t mul(struct ccplane_flow *flow, int64_t a, int64_t b)
{
	int64_t product;

	if (ccplane_unlikely(__builtin_mul_overflow(a, b, &product)))
		return fault(flow, (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN);
	return product;
}

static inline int64_t divide(struct ccplane_flow *flow, int64_t a, int64_t b)
{
	if (ccplane_unlikely(b == 0))
		return fault(flow, 0);
	if (ccplane_unlikely(a == INT64_MIN && b == -1))
		return fault(flow, INT64_MAX);
	/* Half as long on many processors, where both are short. */
	if (!(((uint64_t)a | (uint64_t)b) >> 32))
		return (uint32_t)a / (uint32_t)b;
	return a / b;
}

static CCPLANE_NOINLINE int64_t ewma(struct ccplane_flow *flow, int64_t old, int64_t a, int64_t b)
{
	int64_t kept, fresh;

	if (old == 0)
		return b;
	kept = mul(flow, a, old);
	fresh = mul(flow, sub(flow, EWMA_DENOM, a), b);
	return divide(flow, add(flow, kept, fresh), EWMA_DENOM);
}

/* One less than the modular distance where it wraps, as in libccp. */
static uint32_t sequence_distance(uint32_t left, uint32_t right)
{
	return right > left ? right - left : UINT32_MAX - left + right;
}

static CCPLANE_NOINLINE int64_t wrapped_max(int64_t a, int64_t b)
{
	uint32_t a32 = (uint32_t)a, b32 = (uint32_t)b;

	if (a == 0)
		return b;
	if (b == 0)
		return a;
	return sequence_distance(b32, a32) < sequence_distance(a32, b32) ? a32 : b32;
}

static inline int64_t saturating_sub(int64_t a, int64_t b)
{
	int64_t difference;

	if (__builtin_sub_overflow(a, b, &difference))
		return b < 0 ? INT64_MAX : INT64_MIN;
	return difference;
}

/* Appends an interval to a history: the oldest makes room. */
static CCPLANE_NOINLINE void append(const struct ccplane_history *history, struct ccplane_flow *flow)
{
	int32_t *cells = flow->histories + history->first;
	unsigned int n, kept = history->cells - history->width;

	memmove(cells, cells + history->width, kept * sizeof(*cells));
	for (n = 0; n < history->width; n++) {
		int64_t value = flow->cells[CCPLANE_CELL_REGS + history->regs[n]];

		cells[kept + n] = (int32_t)ccplane_clamp(value, INT32_MIN, INT32_MAX);
	}
}

static CCPLANE_NOINLINE uint32_t ask(uint8_t slot, const struct ccplane_slots *slots, uint64_t key,
				     struct ccplane_flow *flow)
{
	int64_t *cells = flow->cells;
	struct ccplane_knobs knobs = { cells[CCPLANE_CELL_CWND], cells[CCPLANE_CELL_RATE] };
	int64_t action = 0;

	if (!slots || !ccplane_decide(&slots->slot[slot], slots->control[slot], key, &flow->policy, flow->histories,
				      &knobs, &action)) {
		/* A report of this invocation is no row of the decision before. */
		cells[CCPLANE_CELL_ACTION] = 0;
		cells[CCPLANE_CELL_SNAPSHOT] = 0;
		return CCPLANE_ASKED | CCPLANE_LEFT;
	}
	cells[CCPLANE_CELL_CWND] = knobs.cwnd_bytes;
	cells[CCPLANE_CELL_RATE] = knobs.rate_bytes_per_s;
	cells[CCPLANE_CELL_ACTION] = action;
	cells[CCPLANE_CELL_SNAPSHOT] = flow->policy.uid;
	return CCPLANE_ASKED;
}

static inline const struct ccplane_step *target(const struct ccplane_prog *prog, struct ccplane_step unless)
{
	return prog->step + (unless.dst | unless.b << 8);
}

/*
 * Every operand is a byte and there are as many cells, every target was written by program.c, and the last step is
 * CCPLANE_END: nothing is left to check.
 */
static uint32_t run(const struct ccplane_prog *prog, struct ccplane_flow *flow, int64_t now_us,
		    const struct ccplane_slots *slots, uint64_t key)
{
	const struct ccplane_step *next = prog->step;
	int64_t *cells = flow->cells;
	uint32_t outcome = 0;

	for (;;) {
		struct ccplane_step step = *next++;
		int64_t x = cells[step.a], y = cells[step.b];
		int64_t *to = &cells[step.dst];

		/* A kernel has no jump tables: without these first, most steps would be found at the fifth comparison. */
		if (step.action == CCPLANE_ADD) {
			*to = add(flow, x, y);
			continue;
		}
		if (step.action == CCPLANE_UNLESS_GT) {
			*to = x > y;
			next = x > y ? next + 1 : target(prog, *next);
			continue;
		}
		if (step.action == CCPLANE_UNLESS_LT) {
			*to = x < y;
			next = x < y ? next + 1 : target(prog, *next);
			continue;
		}
		switch (step.action) {
		case CCPLANE_BIND:
			*to = y;
			break;
		case CCPLANE_SUB:
			*to = sub(flow, x, y);
			break;
		case CCPLANE_MUL:
			*to = mul(flow, x, y);
			break;
		case CCPLANE_DIV:
			*to = divide(flow, x, y);
			break;
		case CCPLANE_EQ:
			*to = x == y;
			break;
		case CCPLANE_LT:
			*to = x < y;
			break;
		case CCPLANE_GT:
			*to = x > y;
			break;
		case CCPLANE_LE:
			*to = x <= y;
			break;
		case CCPLANE_GE:
			*to = x >= y;
			break;
		case CCPLANE_MIN:
			*to = x < y ? x : y;
			break;
		case CCPLANE_MAX:
			*to = x > y ? x : y;
			break;
		case CCPLANE_MAX_WRAP:
			*to = wrapped_max(x, y);
			break;
		case CCPLANE_AND:
			*to = x & y;
			break;
		case CCPLANE_OR:
			*to = x | y;
			break;
		case CCPLANE_EWMA:
			*to = ewma(flow, *to, x, y);
			break;
		case CCPLANE_IF:
			*to = x ? y : *to;
			break;
		case CCPLANE_NOT_IF:
			*to = x ? *to : y;
			break;
		case CCPLANE_HISTORY:
			append(&prog->history[step.a], flow);
			break;
		case CCPLANE_POLICY:
			outcome |= ask(step.a, slots, key, flow);
			break;
		case CCPLANE_MICROS_IF:
			if (x)
				flow->micros_zero_us = saturating_sub(now_us, cells[CCPLANE_CELL_MICROS]);
			break;
		case CCPLANE_MICROS_NOT_IF:
			if (!x)
				flow->micros_zero_us = saturating_sub(now_us, cells[CCPLANE_CELL_MICROS]);
			break;
		case CCPLANE_MICROS:
			flow->micros_zero_us = saturating_sub(now_us, cells[CCPLANE_CELL_MICROS]);
			break;
		case CCPLANE_LOAD:
			memcpy(to, next, sizeof(*to));
			next += sizeof(*to) / sizeof(*next);
			break;
		case CCPLANE_UNLESS:
			if (!x)
				next = target(prog, step);
			break;
		case CCPLANE_UNLESS_OR:
			*to = x | y;
			next = x | y ? next + 1 : target(prog, *next);
			break;
		case CCPLANE_IF_LT:
			*to = x < y;
			if (x < y)
				cells[next->dst] = cells[next->b];
			next++;
			break;
		case CCPLANE_IF_GT:
			*to = x > y;
			if (x > y)
				cells[next->dst] = cells[next->b];
			next++;
			break;
		case CCPLANE_LEAVE:
			if (!cells[CCPLANE_CELL_CONTINUE])
				return outcome;
			break;
		case CCPLANE_END:
			return outcome;
		}
	}
}

/* Puts what the program reads of an ACK into its cells, in the primitives' order: the two with a rule come last. */
static inline void load_prims(const struct ccplane_prog *prog, const struct ccplane_prims *prims, int64_t *cells)
{
	int64_t *to = cells + prog->prims_at;
	unsigned int n;

	for (n = 0; n < prog->prims_read; n++)
		*to++ = prims->value[prog->prim_list[n]];
	if (prog->prims >> CCPLANE_FLOW_WAS_TIMEOUT & 1) {
		to--;
		*to = *to != 0;
	}
	if (prog->prims >> CCPLANE_FLOW_RTT_SAMPLE_US & 1) {
		to--;
		if (*to <= 0)
			*to = CCPLANE_INFINITY;
	}
}

uint32_t ccplane_prog_invoke(const struct ccplane_prog *prog, struct ccplane_flow *flow,
			     const struct ccplane_prims *prims, const struct ccplane_slots *slots, uint64_t key)
{
	int64_t *cells = flow->cells;
	int64_t now_us = prims->value[CCPLANE_ACK_NOW];
	int64_t cwnd_before = cells[CCPLANE_CELL_CWND], rate_before = cells[CCPLANE_CELL_RATE];
	uint32_t outcome;

	load_prims(prog, prims, cells);
	cells[CCPLANE_CELL_MICROS] = saturating_sub(now_us, flow->micros_zero_us);
	cells[CCPLANE_CELL_REPORT] = 0;
	cells[CCPLANE_CELL_CONTINUE] = 0;
	outcome = run(prog, flow, now_us, slots, key);
	/* A window that is not positive, or a negative rate, is no decision. */
	if (cells[CCPLANE_CELL_CWND] <= 0)
		cells[CCPLANE_CELL_CWND] = cwnd_before;
	if (cells[CCPLANE_CELL_CWND] > CCPLANE_MAX_CWND_BYTES)
		cells[CCPLANE_CELL_CWND] = CCPLANE_MAX_CWND_BYTES;
	if (cells[CCPLANE_CELL_RATE] < 0)
		cells[CCPLANE_CELL_RATE] = rate_before;
	if (cells[CCPLANE_CELL_RATE] > CCPLANE_MAX_RATE_BYTES_PER_S)
		cells[CCPLANE_CELL_RATE] = CCPLANE_MAX_RATE_BYTES_PER_S;
	return outcome | (cells[CCPLANE_CELL_REPORT] ? CCPLANE_REPORTED : 0);
}

void ccplane_flow_reported(const struct ccplane_prog *prog, struct ccplane_flow *flow)
{
	unsigned int n;

	for (n = 0; n < prog->volatiles; n++) {
		uint8_t reg = prog->volatile_list[n];

		flow->cells[CCPLANE_CELL_REGS + reg] = prog->reg[reg].init;
	}
}

void ccplane_flow_init(struct ccplane_flow *flow, int64_t cwnd_bytes)
{
	memset(flow, 0, sizeof(*flow));
	flow->cells[CCPLANE_CELL_CWND] = cwnd_bytes;
}

void ccplane_flow_start(const struct ccplane_prog *prog, struct ccplane_flow *flow, int64_t now_us)
{
	unsigned int n;

	for (n = 0; n < prog->regs; n++)
		flow->cells[CCPLANE_CELL_REGS + n] = prog->reg[n].init;
	for (n = 0; n < prog->constants; n++)
		flow->cells[prog->constants_at + n] = prog->constant[n];
	flow->micros_zero_us = now_us;
	memset(flow->histories, 0, sizeof(flow->histories));
	flow->cells[CCPLANE_CELL_ACTION] = 0;
	flow->cells[CCPLANE_CELL_SNAPSHOT] = 0;
}

bool ccplane_field_ok(const struct ccplane_prog *prog, enum ccplane_field field, uint8_t reg)
{
	if (field != CCPLANE_FIELD_REG)
		return field == CCPLANE_FIELD_CWND || field == CCPLANE_FIELD_RATE;
	return prog && reg < prog->regs && prog->reg[reg].kind == CCPLANE_CONTROL;
}

void ccplane_flow_set(const struct ccplane_prog *prog, struct ccplane_flow *flow, enum ccplane_field field,
		      uint8_t reg, int64_t value)
{
	int64_t *cells = flow->cells;

	if (!ccplane_field_ok(prog, field, reg))
		return;
	if (field == CCPLANE_FIELD_REG)
		cells[CCPLANE_CELL_REGS + reg] = prog->reg[reg].is_bool ? value != 0 : value;
	else if (field == CCPLANE_FIELD_CWND && value > 0)
		cells[CCPLANE_CELL_CWND] = ccplane_clamp(value, 1, CCPLANE_MAX_CWND_BYTES);
	else if (field == CCPLANE_FIELD_RATE && value >= 0)
		cells[CCPLANE_CELL_RATE] = ccplane_clamp(value, 0, CCPLANE_MAX_RATE_BYTES_PER_S);
}

void ccplane_flow_follow_mss(const struct ccplane_prog *prog, struct ccplane_flow *flow, uint32_t *told_bytes,
			     uint32_t now_bytes)
{
	uint32_t told = *told_bytes;

	*told_bytes = now_bytes;
	if (prog->mss_reg != CCPLANE_NONE && flow->cells[CCPLANE_CELL_REGS + prog->mss_reg] == told)
		flow->cells[CCPLANE_CELL_REGS + prog->mss_reg] = now_bytes;
}

static const char *const codes[CCPLANE_CODES] = {
	[CCPLANE_OK] = "nothing is wrong",
	[CCPLANE_SHORT] = "the bytes end within it",
	[CCPLANE_LONG] = "bytes are left over behind it",
	[CCPLANE_TOO_MANY] = "more than the limit",
	[CCPLANE_UNKNOWN] = "an unknown number",
	[CCPLANE_TEXT] = "a name that is not UTF-8",
	[CCPLANE_VARINT] = "a number that is not in its shortest form",
	[CCPLANE_BAD_INDEX] = "index out of range",
	[CCPLANE_BAD_TYPE] = "operand of the wrong type",
	[CCPLANE_BAD_CLAUSE] = "instructions out of range",
	[CCPLANE_UNSET_TMP] = "temporary read before it was written",
	[CCPLANE_REG_ORDER] = "registers must be ordered report, control, local",
	[CCPLANE_BAD_INIT] = "initial value not of its type",
	[CCPLANE_BAD_HISTORY] = "no such registers or intervals",
	[CCPLANE_NO_SLOT] = "no such policy slot, or no shape for it yet",
	[CCPLANE_SLOT_INPUTS] = "the policy slot takes another number of inputs",
	[CCPLANE_IMAGE_LENGTH] = "another length than its shape's",
	[CCPLANE_IMAGE_SHAPE] = "another shape than the slot's",
	[CCPLANE_IMAGE_RANGE] = "a number outside its limits",
	[CCPLANE_IMAGE_RESERVED] = "reserved words that are not 0",
	[CCPLANE_IMAGE_FEATURE] = "lo < hi and their factor are needed",
	[CCPLANE_IMAGE_WEIGHTS] = "not weights of 16 bits",
	[CCPLANE_IMAGE_OVERFLOW] = "a sum could overflow its lane",
	[CCPLANE_IMAGE_TABLE] = "no table starts there",
	[CCPLANE_BAD_SHAPE] = "the code of no shape",
	[CCPLANE_OTHER_SHAPE] = "the slot has another shape",
	[CCPLANE_SAME_UID] = "the slot holds its uid already",
	[CCPLANE_SLOT_BUSY] = "no buffer is free",
	[CCPLANE_NO_SNAPSHOT] = "no canary, or no last good snapshot",
};

const char *ccplane_code_text(uint32_t code)
{
	return code < CCPLANE_CODES ? codes[code] : "an unknown refusal";
}

const char *ccplane_place_text(uint32_t place)
{
	static const char *const places[CCPLANE_PLACES] = {
		[CCPLANE_AT_WHOLE] = "all of it",
		[CCPLANE_AT_REG] = "register",
		[CCPLANE_AT_HISTORY] = "history",
		[CCPLANE_AT_CLAUSE] = "clause",
		[CCPLANE_AT_INST] = "instruction",
		[CCPLANE_AT_SLOT] = "slot",
		[CCPLANE_AT_BYTE] = "byte",
		[CCPLANE_AT_INPUT] = "input",
		[CCPLANE_AT_LAYER] = "layer",
	};

	return place < CCPLANE_PLACES ? places[place] : "an unknown place";
}
