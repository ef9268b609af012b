// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Programs as they arrive: parsed, verified, laid out as steps. Three passes over the same bytes, so that nothing is
 * allocated: the first finds out whether they are a program at all, the second proves what vm.c relies on, and counts;
 * the third writes the steps.
 */
#include "vm.h"
#include "steps.h"

/* Flags of a register on the wire. */
#define REG_BOOL 4
#define REG_VOLATILE 8
/* Above the number of histories, the hook; 0 for ACKs, the only one here. */
#define HOOK_SHIFT 6
/* Bytes of the longest varint. */
#define MAX_VARINT_BYTES 10

enum src_kind {
	SRC_IMM, SRC_FALSE, SRC_TRUE, SRC_REG, SRC_TMP, SRC_PRIM, SRC_CWND, SRC_RATE, SRC_MICROS, SRC_ACTION,
	SRC_SNAPSHOT, SRC_KINDS,
};

enum dst_kind { DST_REG, DST_TMP, DST_CWND, DST_RATE, DST_MICROS, DST_REPORT, DST_CONTINUE, DST_KINDS };

enum type { NUM, BOOL, UNSET };

struct inst {
	uint8_t op;
	uint8_t dst;		/* enum dst_kind */
	uint8_t dst_index;
	struct ccplane_src a;
	struct ccplane_src b;
};

/* The bytes not yet read, and where in the program they are. The first refusal stays. */
struct reader {
	const uint8_t *at;
	const uint8_t *end;
	struct ccplane_error error;
};

static void at(struct reader *r, uint32_t place, uint32_t index)
{
	if (r->error.code)
		return;
	r->error.place = place;
	r->error.index = index;
}

static void refuse(struct reader *r, uint32_t code)
{
	if (!r->error.code)
		r->error.code = code;
	/* Whatever is still read is 0. */
	r->at = r->end;
}

static uint8_t get_u8(struct reader *r)
{
	if (r->at == r->end) {
		refuse(r, CCPLANE_SHORT);
		return 0;
	}
	return *r->at++;
}

static uint16_t get_u16(struct reader *r)
{
	uint16_t low = get_u8(r);

	return (uint16_t)(low | get_u8(r) << 8);
}

static const uint8_t *get_bytes(struct reader *r, size_t n)
{
	const uint8_t *bytes = r->at;

	if ((size_t)(r->end - r->at) < n) {
		refuse(r, CCPLANE_SHORT);
		return NULL;
	}
	r->at += n;
	return bytes;
}

static unsigned int limited(struct reader *r, unsigned int found, unsigned int limit)
{
	if (found <= limit)
		return found;
	refuse(r, CCPLANE_TOO_MANY);
	return 0;
}

/* LEB128 of the zigzag form, shortest. */
static int64_t get_varint(struct reader *r)
{
	uint64_t zigzag = 0;
	unsigned int n;

	for (n = 0; n < MAX_VARINT_BYTES; n++) {
		uint8_t byte = get_u8(r);

		/* The tenth byte holds the 64th bit only; a last byte of 0 would be a longer form of the number. */
		if ((n == MAX_VARINT_BYTES - 1 && byte > 1) || (n > 0 && byte == 0)) {
			refuse(r, CCPLANE_VARINT);
			return 0;
		}
		zigzag |= (uint64_t)(byte & 0x7f) << (7 * n);
		if (!(byte & 0x80))
			break;
	}
	return (int64_t)(zigzag >> 1 ^ (0 - (zigzag & 1)));
}

/* Whether bytes are UTF-8 (RFC 3629): no surrogates, nothing overlong, nothing above U+10FFFF. */
static bool is_utf8(const uint8_t *bytes, size_t len)
{
	size_t n = 0;

	while (n < len) {
		uint8_t first = bytes[n++], low = 0x80, high = 0xbf;
		unsigned int more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;

		if (first >= 0x80 && (first < 0xc2 || first > 0xf4))
			return false;
		if (first == 0xe0)
			low = 0xa0;
		else if (first == 0xed)
			high = 0x9f;
		else if (first == 0xf0)
			low = 0x90;
		else if (first == 0xf4)
			high = 0x8f;
		for (; more; more--) {
			if (n == len || bytes[n] < low || bytes[n] > high)
				return false;
			n++;
			low = 0x80;
			high = 0xbf;
		}
	}
	return true;
}

static struct ccplane_src get_src(struct reader *r)
{
	struct ccplane_src src = { 0, get_u8(r), 0 };

	switch (src.kind) {
	case SRC_IMM:
		src.imm = get_varint(r);
		break;
	case SRC_REG:
	case SRC_TMP:
		src.index = get_u8(r);
		break;
	case SRC_PRIM:
		src.index = get_u8(r);
		if (src.index >= CCPLANE_PRIMS)
			refuse(r, CCPLANE_UNKNOWN);
		break;
	default:
		if (src.kind >= SRC_KINDS)
			refuse(r, CCPLANE_UNKNOWN);
	}
	return src;
}

static struct inst get_inst(struct reader *r)
{
	struct inst inst = { 0 };

	inst.op = get_u8(r);
	if (inst.op >= CCPLANE_OPS)
		refuse(r, CCPLANE_UNKNOWN);
	inst.dst = get_u8(r);
	if (inst.dst >= DST_KINDS)
		refuse(r, CCPLANE_UNKNOWN);
	if (inst.dst == DST_REG || inst.dst == DST_TMP)
		inst.dst_index = get_u8(r);
	inst.a = get_src(r);
	inst.b = get_src(r);
	return inst;
}

/* The parts of an instruction that mean something. */
static bool reads_a(const struct inst *inst)
{
	return inst->op != CCPLANE_BIND && inst->op < CCPLANE_HISTORY;
}

static bool has_result(const struct inst *inst)
{
	return inst->op < CCPLANE_HISTORY;
}

static bool reads_dst(const struct inst *inst)
{
	return inst->op == CCPLANE_EWMA || inst->op == CCPLANE_IF || inst->op == CCPLANE_NOT_IF;
}

/*
 * The first pass.
 */
static void parse_reg(struct reader *r, struct ccplane_prog *prog, uint8_t n)
{
	static const uint8_t mss[] = { 'm', 's', 's' };
	struct ccplane_reg *reg = &prog->reg[n];
	size_t len = limited(r, get_u16(r), CCPLANE_MAX_REG_NAME_BYTES);
	const uint8_t *name = get_bytes(r, len);
	uint8_t flags;

	if (name && !is_utf8(name, len))
		refuse(r, CCPLANE_TEXT);
	/* The first of this name counts, whatever its kind. */
	if (name && len == sizeof(mss) && !memcmp(name, mss, len) && prog->mss_reg == CCPLANE_NONE)
		prog->mss_reg = n;
	flags = get_u8(r);
	reg->kind = flags & (uint8_t)~(REG_BOOL | REG_VOLATILE);
	if (reg->kind > CCPLANE_LOCAL)
		refuse(r, CCPLANE_UNKNOWN);
	reg->is_bool = !!(flags & REG_BOOL);
	reg->is_volatile = (flags & REG_VOLATILE) && reg->kind != CCPLANE_LOCAL;
	reg->init = get_varint(r);
}

static void parse_history(struct reader *r, struct ccplane_history *history)
{
	const uint8_t *regs;

	history->depth = get_u8(r);
	history->width = (uint8_t)limited(r, get_u8(r), CCPLANE_MAX_REGS);
	regs = get_bytes(r, history->width);
	if (regs)
		memcpy(history->regs, regs, history->width);
}

/* Leaves *insts at the first instruction. */
static void parse(struct reader *r, struct ccplane_prog *prog, struct reader *insts)
{
	unsigned int n, first = 0;
	uint8_t histories;

	prog->regs = (uint8_t)limited(r, get_u8(r), CCPLANE_MAX_REGS);
	histories = get_u8(r);
	if (histories >> HOOK_SHIFT)
		refuse(r, CCPLANE_UNKNOWN);
	prog->histories = (uint8_t)limited(r, histories, CCPLANE_MAX_HISTORIES);
	prog->clauses = (uint8_t)limited(r, get_u8(r), CCPLANE_MAX_CLAUSES);
	prog->insts = (uint16_t)limited(r, get_u16(r), CCPLANE_MAX_INSTS);
	for (n = 0; n < prog->regs && !r->error.code; n++) {
		at(r, CCPLANE_AT_REG, n);
		parse_reg(r, prog, (uint8_t)n);
	}
	for (n = 0; n < prog->histories && !r->error.code; n++) {
		at(r, CCPLANE_AT_HISTORY, n);
		parse_history(r, &prog->history[n]);
	}
	for (n = 0; n < prog->clauses && !r->error.code; n++) {
		struct ccplane_clause *clause = &prog->clause[n];

		at(r, CCPLANE_AT_CLAUSE, n);
		clause->guard_insts = get_u16(r);
		clause->body_insts = get_u16(r);
		clause->guard = get_src(r);
		/* The clauses before it end within 16 bits. */
		first += (unsigned int)clause->guard_insts + clause->body_insts;
		if (first > UINT16_MAX)
			refuse(r, CCPLANE_TOO_MANY);
	}
	*insts = *r;
	for (n = 0; n < prog->insts && !r->error.code; n++) {
		at(r, CCPLANE_AT_INST, n);
		get_inst(r);
	}
	at(r, CCPLANE_AT_WHOLE, 0);
}

/*
 * The second pass: the rules of ir.rs, in its order. Each function returns false where it refused.
 */
struct verifier {
	struct reader r;
	struct ccplane_prog *prog;
	uint8_t tmps[CCPLANE_MAX_TMPS];		/* enum type */
	bool goes_on;		/* nothing but true was bound to ShouldContinue so far */
	bool first_goes_on;	/* the first clause binds it, and always runs */
};

static bool no(struct verifier *v, uint32_t code)
{
	refuse(&v->r, code);
	return false;
}

static bool verify_histories(struct verifier *v)
{
	struct ccplane_prog *prog = v->prog;
	unsigned int n, k, cells = 0;

	for (n = 0; n < prog->histories; n++) {
		struct ccplane_history *h = &prog->history[n];

		at(&v->r, CCPLANE_AT_HISTORY, n);
		if (h->depth > CCPLANE_MAX_HISTORY_DEPTH)
			return no(v, CCPLANE_TOO_MANY);
		if (!h->depth || !h->width)
			return no(v, CCPLANE_BAD_HISTORY);
		for (k = 0; k < h->width; k++)
			if (h->regs[k] >= prog->regs)
				return no(v, CCPLANE_BAD_HISTORY);
		h->first = (uint8_t)cells;
		h->cells = (uint8_t)(h->depth * h->width);
		cells += (unsigned int)h->depth * h->width;
	}
	at(&v->r, CCPLANE_AT_WHOLE, 0);
	if (cells > CCPLANE_MAX_POLICY_INPUTS)
		return no(v, CCPLANE_TOO_MANY);
	prog->policy_inputs = (uint8_t)cells;
	return true;
}

static bool verify_regs(struct verifier *v)
{
	struct ccplane_prog *prog = v->prog;
	unsigned int n;

	for (n = 0; n < prog->regs; n++) {
		const struct ccplane_reg *reg = &prog->reg[n];
		bool is_bit = reg->init == 0 || reg->init == 1;

		at(&v->r, CCPLANE_AT_REG, n);
		if ((reg->is_bool && !is_bit) || (reg->kind == CCPLANE_LOCAL && reg->init != 0))
			return no(v, CCPLANE_BAD_INIT);
		if (reg->kind == CCPLANE_REPORT)
			prog->report_len++;
		if (reg->is_volatile)
			prog->volatile_list[prog->volatiles++] = (uint8_t)n;
	}
	at(&v->r, CCPLANE_AT_WHOLE, 0);
	for (n = 1; n < prog->regs; n++)
		if (prog->reg[n - 1].kind > prog->reg[n].kind)
			return no(v, CCPLANE_REG_ORDER);
	if (prog->mss_reg != CCPLANE_NONE) {
		const struct ccplane_reg *mss = &prog->reg[prog->mss_reg];

		if (mss->kind != CCPLANE_CONTROL || mss->is_bool)
			prog->mss_reg = CCPLANE_NONE;
	}
	return true;
}

/* The type of an operand that is read, which is noted; UNSET where it was refused. */
static enum type src_type(struct verifier *v, const struct ccplane_src *src)
{
	switch (src->kind) {
	case SRC_FALSE:
	case SRC_TRUE:
		return BOOL;
	case SRC_REG:
		if (src->index >= v->prog->regs)
			break;
		return v->prog->reg[src->index].is_bool ? BOOL : NUM;
	case SRC_TMP:
		if (src->index >= CCPLANE_MAX_TMPS)
			break;
		if (v->tmps[src->index] == UNSET)
			no(v, CCPLANE_UNSET_TMP);
		return (enum type)v->tmps[src->index];
	case SRC_PRIM:
		v->prog->prims |= (uint16_t)(1u << src->index);
		return src->index == CCPLANE_FLOW_WAS_TIMEOUT ? BOOL : NUM;
	default:
		return NUM;
	}
	no(v, CCPLANE_BAD_INDEX);
	return UNSET;
}

/* Whether an operand is of this type. */
static bool of(struct verifier *v, const struct ccplane_src *src, enum type wanted)
{
	enum type found = src_type(v, src);

	if (found == UNSET)
		return false;
	return found == wanted || no(v, CCPLANE_BAD_TYPE);
}

static bool both(struct verifier *v, const struct inst *inst, enum type wanted)
{
	return of(v, &inst->a, wanted) && of(v, &inst->b, wanted);
}

/* An immediate below a limit. */
static bool index_below(struct verifier *v, const struct ccplane_src *src, int64_t limit)
{
	if (src->kind != SRC_IMM)
		return no(v, CCPLANE_BAD_TYPE);
	return (src->imm >= 0 && src->imm < limit) || no(v, CCPLANE_BAD_INDEX);
}

/* The type of an instruction's result; UNSET where it was refused. */
static enum type result_type(struct verifier *v, const struct inst *inst)
{
	switch (inst->op) {
	case CCPLANE_BIND:
		return src_type(v, &inst->b);
	case CCPLANE_EQ:
	case CCPLANE_LT:
	case CCPLANE_GT:
	case CCPLANE_LE:
	case CCPLANE_GE:
		return both(v, inst, NUM) ? BOOL : UNSET;
	case CCPLANE_AND:
	case CCPLANE_OR:
		return both(v, inst, BOOL) ? BOOL : UNSET;
	case CCPLANE_IF:
	case CCPLANE_NOT_IF:
		return of(v, &inst->a, BOOL) ? src_type(v, &inst->b) : UNSET;
	default:
		return both(v, inst, NUM) ? NUM : UNSET;
	}
}

static bool verify_dst(struct verifier *v, const struct inst *inst, enum type result)
{
	struct ccplane_prog *prog = v->prog;

	switch (inst->dst) {
	case DST_REG:
		if (inst->dst_index >= prog->regs)
			return no(v, CCPLANE_BAD_INDEX);
		/* A number may hold a truth value, as 0 or 1. */
		if (prog->reg[inst->dst_index].is_bool && result != BOOL)
			return no(v, CCPLANE_BAD_TYPE);
		return true;
	case DST_TMP:
		/* A conditional write would leave the temporary unset on one path. */
		if (reads_dst(inst))
			return no(v, CCPLANE_BAD_TYPE);
		if (inst->dst_index >= CCPLANE_MAX_TMPS)
			return no(v, CCPLANE_BAD_INDEX);
		v->tmps[inst->dst_index] = (uint8_t)result;
		if (prog->tmps <= inst->dst_index)
			prog->tmps = inst->dst_index + 1;
		return true;
	case DST_REPORT:
	case DST_CONTINUE:
		return (result == BOOL && !reads_dst(inst)) || no(v, CCPLANE_BAD_TYPE);
	default:
		return result == NUM || no(v, CCPLANE_BAD_TYPE);
	}
}

static bool verify_inst(struct verifier *v, const struct inst *inst, unsigned int n)
{
	struct ccplane_prog *prog = v->prog;
	enum type result;

	if (inst->op == CCPLANE_HISTORY) {
		prog->uses_policy = 1;
		return index_below(v, &inst->a, prog->histories);
	}
	if (inst->op == CCPLANE_POLICY) {
		if (!index_below(v, &inst->a, CCPLANE_MAX_POLICY_SLOTS))
			return false;
		prog->uses_policy = 1;
		if (!(prog->slots >> inst->a.imm & 1))
			prog->asked_at[inst->a.imm] = (uint16_t)n;
		prog->slots |= (uint16_t)(1u << inst->a.imm);
		return true;
	}
	result = result_type(v, inst);
	if (result == UNSET || !verify_dst(v, inst, result))
		return false;
	if (inst->dst == DST_CONTINUE)
		v->goes_on &= inst->op == CCPLANE_BIND && inst->b.kind == SRC_TRUE;
	return true;
}

static bool verify_block(struct verifier *v, unsigned int first, unsigned int insts, bool always)
{
	unsigned int n;

	memset(v->tmps, UNSET, sizeof(v->tmps));
	for (n = first; n < first + insts; n++) {
		struct inst inst = get_inst(&v->r);

		at(&v->r, CCPLANE_AT_INST, n);
		if (!verify_inst(v, &inst, n))
			return false;
		if (always && has_result(&inst) && inst.dst == DST_CONTINUE)
			v->first_goes_on = true;
	}
	return true;
}

static bool verify_clauses(struct verifier *v)
{
	struct ccplane_prog *prog = v->prog;
	unsigned int n, next = 0;

	for (n = 0; n < prog->clauses; n++) {
		const struct ccplane_clause *clause = &prog->clause[n];
		unsigned int body = next + clause->guard_insts;

		at(&v->r, CCPLANE_AT_CLAUSE, n);
		if (body + clause->body_insts > prog->insts)
			return no(v, CCPLANE_BAD_CLAUSE);
		if (!verify_block(v, next, clause->guard_insts, false))
			return false;
		at(&v->r, CCPLANE_AT_CLAUSE, n);
		if (!of(v, &clause->guard, BOOL))
			return false;
		if (!verify_block(v, body, clause->body_insts, n == 0 && clause->guard.kind == SRC_TRUE))
			return false;
		next = body + clause->body_insts;
	}
	at(&v->r, CCPLANE_AT_CLAUSE, n);
	return next == prog->insts || no(v, CCPLANE_BAD_CLAUSE);
}

/*
 * The third pass. Nothing is refused here.
 */
struct writer {
	struct reader r;
	struct ccplane_prog *prog;
	/* The last step that is an operation, or UINT16_MAX where the next one must stay by itself. */
	uint16_t last;
};

static void put(struct writer *w, uint8_t action, uint8_t dst, uint8_t a, uint8_t b)
{
	w->prog->step[w->prog->steps++] = (struct ccplane_step){ action, dst, a, b };
}

/* The cell of a constant: its own, or where those have run out, the spare one, into which a step loads it. */
static uint8_t constant(struct writer *w, int64_t value, uint8_t spare)
{
	struct ccplane_prog *prog = w->prog;
	unsigned int n;

	for (n = 0; n < prog->constants; n++)
		if (prog->constant[n] == value)
			return (uint8_t)(prog->constants_at + n);
	if (prog->constants_at + n < CCPLANE_CELLS) {
		prog->constant[n] = value;
		prog->constants++;
		return (uint8_t)(prog->constants_at + n);
	}
	put(w, CCPLANE_LOAD, spare, 0, 0);
	memcpy(&prog->step[prog->steps], &value, sizeof(value));
	prog->steps += sizeof(value) / sizeof(struct ccplane_step);
	w->last = UINT16_MAX;
	return spare;
}

static uint8_t src_cell(struct writer *w, const struct ccplane_src *src, uint8_t spare)
{
	struct ccplane_prog *prog = w->prog;
	unsigned int n = 0;

	switch (src->kind) {
	case SRC_FALSE:
		return constant(w, 0, spare);
	case SRC_TRUE:
		return constant(w, 1, spare);
	case SRC_REG:
		return CCPLANE_CELL_REGS + src->index;
	case SRC_TMP:
		return (uint8_t)(CCPLANE_CELL_REGS + prog->regs + src->index);
	case SRC_PRIM:
		/* It is there: the second pass has noted it. */
		while (n + 1 < prog->prims_read && prog->prim_list[n] != src->index)
			n++;
		return (uint8_t)(prog->prims_at + n);
	case SRC_CWND:
		return CCPLANE_CELL_CWND;
	case SRC_RATE:
		return CCPLANE_CELL_RATE;
	case SRC_MICROS:
		return CCPLANE_CELL_MICROS;
	case SRC_ACTION:
		return CCPLANE_CELL_ACTION;
	case SRC_SNAPSHOT:
		return CCPLANE_CELL_SNAPSHOT;
	default:
		return constant(w, src->imm, spare);
	}
}

static uint8_t dst_cell(const struct ccplane_prog *prog, const struct inst *inst)
{
	static const uint8_t fixed[DST_KINDS] = {
		[DST_CWND] = CCPLANE_CELL_CWND,
		[DST_RATE] = CCPLANE_CELL_RATE,
		[DST_MICROS] = CCPLANE_CELL_MICROS,
		[DST_REPORT] = CCPLANE_CELL_REPORT,
		[DST_CONTINUE] = CCPLANE_CELL_CONTINUE,
	};

	if (inst->dst == DST_REG)
		return CCPLANE_CELL_REGS + inst->dst_index;
	if (inst->dst == DST_TMP)
		return (uint8_t)(CCPLANE_CELL_REGS + prog->regs + inst->dst_index);
	return fixed[inst->dst];
}

/* Makes one action of the last operation and the one that is about to be written behind it, if there is one for both. */
static void fuse(struct writer *w, uint8_t next, uint8_t about)
{
	bool unless = next == CCPLANE_UNLESS;
	struct ccplane_step *last;

	if (w->last == UINT16_MAX || (!unless && next != CCPLANE_IF))
		return;
	last = &w->prog->step[w->last];
	if (last->dst != about)
		return;
	if (last->action == CCPLANE_LT)
		last->action = unless ? CCPLANE_UNLESS_LT : CCPLANE_IF_LT;
	else if (last->action == CCPLANE_GT)
		last->action = unless ? CCPLANE_UNLESS_GT : CCPLANE_IF_GT;
	else if (last->action == CCPLANE_OR && unless)
		last->action = CCPLANE_UNLESS_OR;
}

static void write_inst(struct writer *w, const struct inst *inst)
{
	uint8_t a = 0, b, dst;

	if (!has_result(inst)) {
		put(w, inst->op, 0, (uint8_t)inst->a.imm, 0);
		w->last = UINT16_MAX;
		return;
	}
	if (reads_a(inst))
		a = src_cell(w, &inst->a, CCPLANE_CELL_SPARE_A);
	b = src_cell(w, &inst->b, CCPLANE_CELL_SPARE_B);
	dst = dst_cell(w->prog, inst);
	fuse(w, inst->op, a);
	w->last = w->prog->steps;
	put(w, inst->op, dst, a, b);
	if (inst->dst != DST_MICROS)
		return;
	put(w, inst->op == CCPLANE_IF ? CCPLANE_MICROS_IF :
	       inst->op == CCPLANE_NOT_IF ? CCPLANE_MICROS_NOT_IF : CCPLANE_MICROS, 0, a, 0);
	w->last = UINT16_MAX;
}

static void write_block(struct writer *w, unsigned int insts)
{
	w->last = UINT16_MAX;
	for (; insts; insts--) {
		struct inst inst = get_inst(&w->r);

		/* Where all clauses run anyway, nothing needs to say so. */
		if (w->prog->goes_on && has_result(&inst) && inst.dst == DST_CONTINUE)
			continue;
		write_inst(w, &inst);
	}
}

static void write_clause(struct writer *w, const struct ccplane_clause *clause)
{
	struct ccplane_prog *prog = w->prog;
	bool conditional = clause->guard.kind != SRC_TRUE;
	uint16_t unless = 0;

	write_block(w, clause->guard_insts);
	if (conditional) {
		uint8_t guard = src_cell(w, &clause->guard, CCPLANE_CELL_SPARE_A);

		fuse(w, CCPLANE_UNLESS, guard);
		unless = prog->steps;
		put(w, CCPLANE_UNLESS, 0, guard, 0);
	}
	write_block(w, clause->body_insts);
	if (!prog->goes_on)
		put(w, CCPLANE_LEAVE, 0, 0, 0);
	if (conditional) {
		prog->step[unless].dst = (uint8_t)prog->steps;
		prog->step[unless].b = (uint8_t)(prog->steps >> 8);
	}
}

static void write_steps(struct writer *w)
{
	struct ccplane_prog *prog = w->prog;
	unsigned int n;

	prog->prims_at = (uint8_t)(CCPLANE_CELL_REGS + prog->regs + prog->tmps);
	for (n = 0; n < CCPLANE_PRIMS; n++)
		if (prog->prims >> n & 1)
			prog->prim_list[prog->prims_read++] = (uint8_t)n;
	prog->constants_at = prog->prims_at + prog->prims_read;
	for (n = 0; n < prog->clauses; n++)
		write_clause(w, &prog->clause[n]);
	put(w, CCPLANE_END, 0, 0, 0);
}

int ccplane_prog_verify(const uint8_t *bytes, size_t len, struct ccplane_prog *prog, struct ccplane_error *error)
{
	struct reader r = { bytes, bytes + len, { CCPLANE_OK, CCPLANE_AT_WHOLE, 0 } };
	struct verifier v = { .prog = prog, .goes_on = true };
	struct writer w = { .prog = prog };

	memset(prog, 0, CCPLANE_PROG_BYTES);
	prog->mss_reg = CCPLANE_NONE;
	parse(&r, prog, &v.r);
	w.r = v.r;
	if (r.error.code) {
		*error = r.error;
		return -1;
	}
	if (!verify_histories(&v) || !verify_regs(&v) || !verify_clauses(&v)) {
		*error = v.r.error;
		return -1;
	}
	/* As the project's own decoder: what is no program is said first. */
	if (r.at != r.end) {
		refuse(&r, CCPLANE_LONG);
		*error = r.error;
		return -1;
	}
	prog->goes_on = v.goes_on && v.first_goes_on;
	write_steps(&w);
	return 0;
}

int ccplane_prog_check_slots(const struct ccplane_prog *prog, const struct ccplane_slots *slots,
			     struct ccplane_error *error)
{
	unsigned int n, first = CCPLANE_MAX_INSTS;

	for (n = 0; n < CCPLANE_MAX_POLICY_SLOTS; n++) {
		uint64_t shape = slots->slot[n].shape;
		bool right = shape && ccplane_shape_inputs(shape) == prog->policy_inputs;

		if (!(prog->slots >> n & 1) || right || prog->asked_at[n] >= first)
			continue;
		first = prog->asked_at[n];
		error->code = shape ? CCPLANE_SLOT_INPUTS : CCPLANE_NO_SLOT;
		error->place = CCPLANE_AT_INST;
		error->index = first;
	}
	return first < CCPLANE_MAX_INSTS ? -1 : 0;
}
