/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* CUBIC (RFC 9438), as the algorithm that flows run where no program decides. The other one is the kernel's own Reno. */
#ifndef CCPLANE_NATIVE_H
#define CCPLANE_NATIVE_H

#include "module.h"

/* Grows the window by so many acknowledged packets. */
void ccplane_cubic_avoid(struct sock *sk, struct ccplane_cubic *cubic, u32 acked);
/* The window that a loss leaves, packets. */
u32 ccplane_cubic_ssthresh(struct sock *sk, struct ccplane_cubic *cubic);
/* Forgets the past, as after a timeout. */
void ccplane_cubic_reset(struct ccplane_cubic *cubic);

#endif
