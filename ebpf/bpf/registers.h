/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What unwinding needs of a machine: its registers, how it tells user mode from kernel mode, and what a signal frame looks like.
 *
 * The layouts are part of the kernel's user-space ABI (ptrace, sigreturn) and therefore fixed, so they are not relocated.
 */
#pragma once

#include "types.h"

#if defined(TARGET_X86_64)

struct registers {
    u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

#define PC(registers) ((registers)->ip)
#define FP(registers) ((registers)->bp)
/* The low bits of the code segment are the privilege level. */
#define IS_USER(registers) (((registers)->cs & 3) == 3)
/* Code segment of 32-bit programs. */
#define IS_COMPAT(registers) (((registers)->cs & 0xffff) == 0x23)
/* The kernel sets orig_ax to -1 on every entry but a system call; after a system call, pc is behind the instruction. */
#define IS_SYSCALL(registers) ((s64)(registers)->orig_ax != -1)

#elif defined(TARGET_AARCH64)

struct registers {
    u64 x[31], sp, pc, pstate;
};

#define PC(registers) ((registers)->pc)
#define FP(registers) ((registers)->x[29])
#define IS_USER(registers) (((registers)->pstate & 0xf) == 0)
#define IS_COMPAT(registers) (((registers)->pstate & 0x10) != 0)
/* pt_regs.syscallno is not part of the ABI; pc may be one instruction behind the system call, in the same function. */
#define IS_SYSCALL(registers) 0

#else
#error "no register layout for this machine: add one here"
#endif

/* What the kernel hands to a program of type perf_event. */
struct perf_event_context {
    struct registers registers; /* of the interrupted code, user or kernel */
    u64 sample_period;
    u64 address;
};
