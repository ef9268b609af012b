/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The actions of steps: program.c writes them, vm.c runs them. */
#ifndef CCPLANE_STEPS_H
#define CCPLANE_STEPS_H

/* The first ones are the operations of the wire, under their numbers there. */
enum ccplane_action {
	CCPLANE_BIND,
	CCPLANE_ADD,
	CCPLANE_SUB,
	CCPLANE_MUL,
	CCPLANE_DIV,
	CCPLANE_EQ,
	CCPLANE_LT,
	CCPLANE_GT,
	CCPLANE_LE,
	CCPLANE_GE,
	CCPLANE_MIN,
	CCPLANE_MAX,
	CCPLANE_MAX_WRAP,
	CCPLANE_AND,
	CCPLANE_OR,
	CCPLANE_EWMA,
	CCPLANE_IF,
	CCPLANE_NOT_IF,
	CCPLANE_HISTORY,	/* appends to history a */
	CCPLANE_POLICY,		/* asks slot a */
	CCPLANE_OPS,
	/* Micros was written: always, where cells[a] is true, where it is false. */
	CCPLANE_MICROS = CCPLANE_OPS,
	CCPLANE_MICROS_IF,
	CCPLANE_MICROS_NOT_IF,
	/* The 64-bit constant in the next two words into cells[dst]. */
	CCPLANE_LOAD,
	/* Goes to the step in dst and b, low byte first, unless cells[a]. */
	CCPLANE_UNLESS,
	/* The comparison of that name, and the CCPLANE_UNLESS behind it, which is about its result. */
	CCPLANE_UNLESS_LT,
	CCPLANE_UNLESS_GT,
	CCPLANE_UNLESS_OR,
	/* The comparison of that name, and the CCPLANE_IF behind it, which is about its result. */
	CCPLANE_IF_LT,
	CCPLANE_IF_GT,
	/* The end of a clause that ran: ends the invocation unless the clause said so. */
	CCPLANE_LEAVE,
	CCPLANE_END,
};

#endif
