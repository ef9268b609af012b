/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Fold programs and policies in C, for the kernel module and for tests in user space.
 *
 * A program arrives as the bytes of a v2 INSTALL (agent/wire/src/v2/program.rs), an image as the words of a v2 PUSH.
 * Both are verified once, and an image's biases prepared, before they run: no allocation, no float, no recursion, no
 * lock, and no loop but over bounds that were verified. Every number comes out as in the reference VM
 * (agent/program/src/vm.rs) and in the reference inference (nn-inkernel/ARITHMETIC.md), bit for bit.
 *
 * The caller allocates, serialises the calls on one flow, and frees. The bytes that are verified must be the caller's
 * own copy: whoever sent them must not be able to change them meanwhile.
 *
 * Build vm.c, program.c, infer.c and slots.c beside the caller's own files; policy.h is generated, as it says.
 */
#ifndef CCPLANE_VM_H
#define CCPLANE_VM_H

#include "platform.h"
#include "policy.h"

/* The limits of agent/program/src/ir.rs and nn-inkernel/infer; a test holds them together. */
#define CCPLANE_MAX_REGS 96
#define CCPLANE_MAX_TMPS 16
#define CCPLANE_MAX_INSTS 1024
#define CCPLANE_MAX_CLAUSES 64
#define CCPLANE_MAX_HISTORIES 4
#define CCPLANE_MAX_HISTORY_DEPTH 32
#define CCPLANE_MAX_POLICY_INPUTS 64
#define CCPLANE_MAX_POLICY_SLOTS 16
#define CCPLANE_MAX_REG_NAME_BYTES 255
#define CCPLANE_MAX_WIDTH 64
#define CCPLANE_MAX_LAYERS 4
#define CCPLANE_MAX_IMAGE_BYTES (1 << 15)
#define CCPLANE_INFINITY INT64_MAX
#define CCPLANE_MAX_CWND_BYTES ((int64_t)1 << 40)
#define CCPLANE_MAX_RATE_BYTES_PER_S ((int64_t)1 << 40)

/* The primitives by libccp's register indices; units as in ir.rs. */
enum ccplane_prim {
	CCPLANE_ACK_BYTES_ACKED,
	CCPLANE_ACK_BYTES_MISORDERED,
	CCPLANE_ACK_ECN_BYTES,
	CCPLANE_ACK_ECN_PACKETS,
	CCPLANE_ACK_LOST_PKTS_SAMPLE,
	CCPLANE_ACK_NOW,
	CCPLANE_ACK_PACKETS_ACKED,
	CCPLANE_ACK_PACKETS_MISORDERED,
	CCPLANE_FLOW_BYTES_IN_FLIGHT,
	CCPLANE_FLOW_BYTES_PENDING,
	CCPLANE_FLOW_PACKETS_IN_FLIGHT,
	CCPLANE_FLOW_RATE_INCOMING,
	CCPLANE_FLOW_RATE_OUTGOING,
	CCPLANE_FLOW_RTT_SAMPLE_US,
	CCPLANE_FLOW_WAS_TIMEOUT,
	CCPLANE_PRIMS,
};

/*
 * The primitives of one ACK. An RTT sample of 0 or less means none. Only those in ccplane_prog.prims are read, and
 * CCPLANE_ACK_NOW, which is always read.
 */
struct ccplane_prims {
	int64_t value[CCPLANE_PRIMS];
};

/* Why something was refused. */
enum ccplane_code {
	CCPLANE_OK,
	/* Of a program's bytes. */
	CCPLANE_SHORT,		/* the bytes end within a program */
	CCPLANE_LONG,		/* bytes are left over behind the program */
	CCPLANE_TOO_MANY,	/* more of something than the limit */
	CCPLANE_UNKNOWN,	/* an operation, operand, destination, primitive or flag that does not exist */
	CCPLANE_TEXT,		/* a name is not UTF-8 */
	CCPLANE_VARINT,		/* a number is not in its shortest form */
	/* Of a program: as VerifyError in ir.rs. */
	CCPLANE_BAD_INDEX,	/* a register, temporary, history or slot that does not exist */
	CCPLANE_BAD_TYPE,	/* an operand of the wrong type */
	CCPLANE_BAD_CLAUSE,	/* a clause's instructions lie outside the program */
	CCPLANE_UNSET_TMP,	/* a temporary is read before it was written */
	CCPLANE_REG_ORDER,	/* registers are not ordered report, control, local */
	CCPLANE_BAD_INIT,	/* a register starts at a value that is not of its type */
	CCPLANE_BAD_HISTORY,	/* a history keeps nothing, or a register that does not exist */
	/* Of a program beside the slots. */
	CCPLANE_NO_SLOT,	/* there is no such policy slot, or it has no shape yet */
	CCPLANE_SLOT_INPUTS,	/* the slot takes another number of inputs than the program's histories have cells */
	/* Of an image: as ImageError in nn-inkernel/infer/src/check.rs. */
	CCPLANE_IMAGE_LENGTH,
	CCPLANE_IMAGE_SHAPE,
	CCPLANE_IMAGE_RANGE,
	CCPLANE_IMAGE_RESERVED,
	CCPLANE_IMAGE_FEATURE,
	CCPLANE_IMAGE_WEIGHTS,
	CCPLANE_IMAGE_OVERFLOW,
	CCPLANE_IMAGE_TABLE,
	/* Of a slot's commands. */
	CCPLANE_BAD_SHAPE,	/* the shape's code is of no network */
	CCPLANE_OTHER_SHAPE,	/* the slot has another shape */
	CCPLANE_SAME_UID,	/* the slot holds an image of this uid already */
	CCPLANE_SLOT_BUSY,	/* no buffer of the slot is free */
	CCPLANE_NO_SNAPSHOT,	/* the slot has no canary, or no last good snapshot */
	CCPLANE_CODES,
};

/* The part of a program or image that a refusal is about. */
enum ccplane_place {
	CCPLANE_AT_WHOLE,
	CCPLANE_AT_REG,
	CCPLANE_AT_HISTORY,
	CCPLANE_AT_CLAUSE,
	CCPLANE_AT_INST,
	CCPLANE_AT_SLOT,
	/* Of an image: an offset in bytes, an input, a layer; all counted from 0. */
	CCPLANE_AT_BYTE,
	CCPLANE_AT_INPUT,
	CCPLANE_AT_LAYER,
	CCPLANE_PLACES,
};

/* A refusal and its place. */
struct ccplane_error {
	uint32_t code;	/* enum ccplane_code */
	uint32_t place;	/* enum ccplane_place */
	uint32_t index;	/* which register, clause, instruction, ... */
};

/* The refusal in words that end no sentence, such as "operand of the wrong type"; never NULL. */
const char *ccplane_code_text(uint32_t code);
/* The word for a place, such as "instruction"; never NULL. */
const char *ccplane_place_text(uint32_t place);

/*
 * Cells: all that a program's steps read and write, so that an operand is one byte. The first ones have fixed places;
 * the registers follow, then temporaries, the primitives that the program reads, and constants.
 */
enum ccplane_cell {
	CCPLANE_CELL_CWND,	/* bytes */
	CCPLANE_CELL_RATE,	/* bytes per second; 0 when the program has set none */
	CCPLANE_CELL_MICROS,
	CCPLANE_CELL_ACTION,	/* the last answer of a policy, Q16 */
	CCPLANE_CELL_SNAPSHOT,	/* the deployment that decided it */
	CCPLANE_CELL_REPORT,
	CCPLANE_CELL_CONTINUE,
	CCPLANE_CELL_SPARE_A,	/* constants that have no cell of their own */
	CCPLANE_CELL_SPARE_B,
	CCPLANE_CELL_REGS,
};
#define CCPLANE_CELLS 256

/* One flow under at most one program. Starts as all zero, then ccplane_flow_init. */
struct ccplane_flow {
	int64_t cells[CCPLANE_CELLS];
	/* The clock when Micros read 0, microseconds. */
	int64_t micros_zero_us;
	/* Saturations and divisions by zero since the flow began. */
	uint64_t faults;
	/* What the policies keep; not reset by a program change. */
	struct ccplane_flow_policy policy;
	/* The cells of all histories, as program.histories orders them. */
	int32_t histories[CCPLANE_MAX_POLICY_INPUTS];
};

/* A step of a program: cells[a] and cells[b] into cells[dst]. See vm.c. */
struct ccplane_step {
	uint8_t action;
	uint8_t dst;
	uint8_t a;
	uint8_t b;
};

/* A register's kinds: who sees it and who may write it. */
enum ccplane_kind { CCPLANE_REPORT, CCPLANE_CONTROL, CCPLANE_LOCAL };

struct ccplane_reg {
	int64_t init;
	uint8_t kind;		/* enum ccplane_kind */
	uint8_t is_bool;
	uint8_t is_volatile;	/* back at init after each report; never set on a local */
};

struct ccplane_history {
	uint8_t depth;
	uint8_t width;		/* registers kept */
	uint8_t first;		/* its first cell in ccplane_flow.histories */
	uint8_t cells;		/* depth times width */
	uint8_t regs[CCPLANE_MAX_REGS];
};

/* An operand as it is verified. */
struct ccplane_src {
	int64_t imm;
	uint8_t kind;
	uint8_t index;
};

struct ccplane_clause {
	struct ccplane_src guard;
	uint16_t guard_insts;
	uint16_t body_insts;
};

/*
 * Words of four bytes that a program's steps take at most. An instruction: itself, a move of Micros, two constants that
 * have no cell, of three words each. A clause: a test, its constant, an end.
 */
#define CCPLANE_MAX_STEPS (8 * CCPLANE_MAX_INSTS + 5 * CCPLANE_MAX_CLAUSES + 1)
/* Cells behind the first ones, which registers, temporaries, primitives and constants share. */
#define CCPLANE_MAX_CONSTANTS (CCPLANE_CELLS - CCPLANE_CELL_REGS)
#define CCPLANE_NONE 0xff

/*
 * A verified program. CCPLANE_PROG_BYTES are enough for any; of it the first ccplane_prog_bytes are in use, which may
 * be copied to memory of that size: it holds no pointer. Read-only once it is verified.
 */
struct ccplane_prog {
	/* For the caller. */
	uint8_t regs;
	uint8_t report_len;	/* a report carries the registers below this */
	uint8_t mss_reg;	/* the control register that follows the segment size, or CCPLANE_NONE */
	uint8_t policy_inputs;	/* cells of all histories together */
	uint16_t prims;		/* bit n: the program reads primitive n */
	uint16_t slots;		/* bit n: it asks policy slot n */
	uint8_t uses_policy;	/* it keeps a history or asks a policy */
	/* The rest is for vm.c and program.c. */
	uint8_t tmps;
	uint8_t histories;
	uint8_t clauses;
	uint8_t volatiles;
	uint8_t prims_read;
	uint8_t prims_at;
	uint8_t constants_at;
	uint8_t constants;	/* constants with a cell */
	uint8_t goes_on;	/* all clauses run, whatever ran before */
	uint16_t insts;
	uint16_t steps;
	uint8_t prim_list[CCPLANE_PRIMS];
	uint8_t volatile_list[CCPLANE_MAX_REGS];
	uint16_t asked_at[CCPLANE_MAX_POLICY_SLOTS];	/* the first instruction that asks the slot */
	struct ccplane_reg reg[CCPLANE_MAX_REGS];
	struct ccplane_history history[CCPLANE_MAX_HISTORIES];
	struct ccplane_clause clause[CCPLANE_MAX_CLAUSES];
	int64_t constant[CCPLANE_MAX_CONSTANTS];
	struct ccplane_step step[CCPLANE_MAX_STEPS];
};

/* Memory to allocate: of a program (kvmalloc; 39 KB), of a flow (2.4 KB), and at most of an image. */
#define CCPLANE_PROG_BYTES sizeof(struct ccplane_prog)
#define CCPLANE_FLOW_BYTES sizeof(struct ccplane_flow)
#define CCPLANE_IMAGE_BYTES CCPLANE_MAX_IMAGE_BYTES

/*
 * A datapath's policy slots, which one reader may use while the writer makes another (RCU): nothing here changes once
 * it is published. A slot without a shape is not defined; an empty buffer points to ccplane_no_image.
 */
struct ccplane_slots {
	struct ccplane_slot slot[CCPLANE_MAX_POLICY_SLOTS];
	uint64_t control[CCPLANE_MAX_POLICY_SLOTS];
};

/* What an invocation asks for, as bits of ccplane_prog_invoke's answer. */
#define CCPLANE_REPORTED 1u	/* send a report, then call ccplane_flow_reported */
#define CCPLANE_ASKED 2u	/* a policy was asked */
#define CCPLANE_LEFT 4u		/* a policy had no answer: the flow is the native algorithm's from now on */

/* Computes the activation tables; once, before any image runs. */
void ccplane_tables_init(void);

/*
 * Parses and verifies the program that is all of bytes, into *prog, whatever that held before. 0, or -1 with *error,
 * and *prog is of no use then. Not for interrupt context: up to some hundred microseconds.
 */
int ccplane_prog_verify(const uint8_t *bytes, size_t len, struct ccplane_prog *prog, struct ccplane_error *error);
/* The bytes of a verified program that are in use: some 6 KB for most. */
static inline size_t ccplane_prog_bytes(const struct ccplane_prog *prog)
{
	return offsetof(struct ccplane_prog, step) + prog->steps * sizeof(struct ccplane_step);
}

/* Whether every policy of the program asks a slot that is defined, with as many inputs as it takes. */
int ccplane_prog_check_slots(const struct ccplane_prog *prog, const struct ccplane_slots *slots,
			     struct ccplane_error *error);

/* A flow under no program yet, with this window, bytes. */
void ccplane_flow_init(struct ccplane_flow *flow, int64_t cwnd_bytes);
/* Switches the flow to a program: its registers start anew; window, rate, faults and policy state stay. */
void ccplane_flow_start(const struct ccplane_prog *prog, struct ccplane_flow *flow, int64_t now_us);
/*
 * Runs the flow's program on one ACK: the same program that ccplane_flow_start was called with. The window and rate
 * are ccplane_flow_cwnd and ccplane_flow_rate afterwards. slots may be NULL: no policy answers then. key names the
 * flow (its id): canaries choose it and its noise is drawn by that.
 */
uint32_t ccplane_prog_invoke(const struct ccplane_prog *prog, struct ccplane_flow *flow,
			     const struct ccplane_prims *prims, const struct ccplane_slots *slots, uint64_t key);
/* Resets the volatile registers, once the report has been read from ccplane_flow_regs. */
void ccplane_flow_reported(const struct ccplane_prog *prog, struct ccplane_flow *flow);

/* What the agent sets from outside. */
enum ccplane_field { CCPLANE_FIELD_CWND, CCPLANE_FIELD_RATE, CCPLANE_FIELD_REG };

/* Whether a flow under this program (NULL: none) has such a field; reg counts for CCPLANE_FIELD_REG only. */
bool ccplane_field_ok(const struct ccplane_prog *prog, enum ccplane_field field, uint8_t reg);
/* Sets a field, within its bounds; leaves alone what ccplane_field_ok refuses. */
void ccplane_flow_set(const struct ccplane_prog *prog, struct ccplane_flow *flow, enum ccplane_field field,
		      uint8_t reg, int64_t value);
/*
 * Replaces the segment size in the program's register, if that still holds *told_bytes, and notes now_bytes there.
 * *told_bytes is the segment size of the flow's start when a program starts.
 */
void ccplane_flow_follow_mss(const struct ccplane_prog *prog, struct ccplane_flow *flow, uint32_t *told_bytes,
			     uint32_t now_bytes);

static inline int64_t ccplane_flow_cwnd(const struct ccplane_flow *flow)
{
	return flow->cells[CCPLANE_CELL_CWND];
}

static inline int64_t ccplane_flow_rate(const struct ccplane_flow *flow)
{
	return flow->cells[CCPLANE_CELL_RATE];
}

static inline int64_t ccplane_flow_action(const struct ccplane_flow *flow)
{
	return flow->cells[CCPLANE_CELL_ACTION];
}

static inline uint32_t ccplane_flow_snapshot(const struct ccplane_flow *flow)
{
	return (uint32_t)flow->cells[CCPLANE_CELL_SNAPSHOT];
}

/* The registers: ccplane_prog.regs of them, the first report_len of which a report carries. */
static inline const int64_t *ccplane_flow_regs(const struct ccplane_flow *flow)
{
	return flow->cells + CCPLANE_CELL_REGS;
}

/* The head of an image of no deployment, for empty buffers: nothing reads on where the uid is 0. */
#define CCPLANE_IMAGE_HEAD_WORDS 16
extern const uint64_t ccplane_no_image[CCPLANE_IMAGE_HEAD_WORDS];

/* The size of images of the shape with this code, bytes; 0 if it is no shape's. */
size_t ccplane_shape_image_bytes(uint64_t code);
/* The inputs of networks of a shape, which must be one. */
static inline unsigned int ccplane_shape_inputs(uint64_t code)
{
	return code >> 16 & 0xff;
}
/*
 * Verifies words as an image of this shape, and then changes their biases for ccplane_image_infer: once for each copy of
 * an image. 0, or -1 with *error and the words as they were.
 */
int ccplane_image_prepare(uint64_t shape, uint64_t *words, size_t bytes, struct ccplane_error *error);
/*
 * Runs the network in an image that was prepared: its action before noise and bound, Q16. Reads as many inputs as the
 * shape has, and counts those outside their range.
 */
int64_t ccplane_image_infer(const uint64_t *image, const int32_t *inputs, uint32_t *clipped);

/*
 * The agent's commands on slots that are not published yet (a copy of those that are). Each returns 0, or -1 with
 * *error and no change.
 */
void ccplane_slots_init(struct ccplane_slots *slots);
int ccplane_slot_define(struct ccplane_slots *slots, uint8_t slot, uint64_t shape, struct ccplane_error *error);
/*
 * Puts a prepared image into a buffer, as the active snapshot, or with canary as one for a share (2^-16) of the flows.
 * *replaced is the image that was in the buffer, to be freed after a grace period, or NULL.
 */
int ccplane_slot_push(struct ccplane_slots *slots, uint8_t slot, const uint64_t *image, bool canary, uint16_t share,
		      const uint64_t **replaced, struct ccplane_error *error);
int ccplane_slot_share(struct ccplane_slots *slots, uint8_t slot, uint16_t share, struct ccplane_error *error);
int ccplane_slot_promote(struct ccplane_slots *slots, uint8_t slot, struct ccplane_error *error);
/* *dropped is the image that was taken back, to be freed after a grace period, or NULL. */
int ccplane_slot_rollback(struct ccplane_slots *slots, uint8_t slot, const uint64_t **dropped,
			  struct ccplane_error *error);

#endif
