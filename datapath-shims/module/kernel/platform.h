/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The interpreter's few needs of its surroundings: the kernel's headers, or a C11 library's. */
#ifndef CCPLANE_PLATFORM_H
#define CCPLANE_PLATFORM_H

#ifdef __KERNEL__
#include <linux/compiler.h>
#include <linux/limits.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/types.h>

#ifndef CONFIG_64BIT
#error "ccplane computes in 64-bit words: it needs a 64-bit kernel"
#endif
#ifndef INT64_MAX
#define INT64_MAX S64_MAX
#define INT64_MIN S64_MIN
#define INT32_MAX S32_MAX
#define INT32_MIN S32_MIN
#define INT16_MAX S16_MAX
#define INT16_MIN S16_MIN
#define UINT16_MAX U16_MAX
#endif
#ifndef UINT32_MAX
#define UINT32_MAX U32_MAX
#endif
#define ccplane_likely(x) likely(x)
#define ccplane_unlikely(x) unlikely(x)
#define CCPLANE_NOINLINE noinline
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ccplane_likely(x) __builtin_expect(!!(x), 1)
#define ccplane_unlikely(x) __builtin_expect(!!(x), 0)
#define CCPLANE_NOINLINE __attribute__((noinline))
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "images hold pairs of 32-bit numbers in words, the first one low: ccplane needs a little-endian processor"
#endif

#endif
