/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Properties of a machine that unwinding depends on: its registers, the test for user mode, and the layout of a signal
 * frame.
 *
 * The layouts are part of the kernel's user-space ABI (ptrace, sigreturn) and therefore fixed, so they are not
 * relocated.
 */
#pragma once

#include "types.h"

#if defined(TARGET_X86_64)

struct registers {
    u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

#define PC(registers) ((registers)->ip)
#define SP(registers) ((registers)->sp)
#define FP(registers) ((registers)->bp)
#define BX(registers) ((registers)->bx)
/* DWARF numbers of three registers, and the number of general registers. */
#define FP_NUMBER 6
#define BX_NUMBER 3
#define SP_NUMBER 7
#define REGISTERS 16
/* 1 in user mode: the low bits of the code segment are the privilege level. */
#define IS_USER(registers) (((registers)->cs & 3) == 3)
/* 1 for a 32-bit program, which has its own code segment. */
#define IS_COMPAT(registers) (((registers)->cs & 0xffff) == 0x23)
/* 1 in a system call, where pc is after the system call instruction. The kernel sets orig_ax to -1 on every other
 * entry. */
#define IS_SYSCALL(registers) ((s64)(registers)->orig_ax != -1)

/* Copies the registers to an array whose index is the DWARF number. */
INLINE void number_registers(const struct registers *from, u64 *to)
{
    to[0] = from->ax, to[1] = from->dx, to[2] = from->cx, to[3] = from->bx;
    to[4] = from->si, to[5] = from->di, to[6] = from->bp, to[7] = from->sp;
    to[8] = from->r8, to[9] = from->r9, to[10] = from->r10, to[11] = from->r11;
    to[12] = from->r12, to[13] = from->r13, to[14] = from->r14, to[15] = from->r15;
}

/* Returns 1 for the code that a signal handler returns to: `mov $15,%rax; syscall` or `mov $15,%eax; syscall`. `code`
 * has the first eight bytes of the code. */
INLINE int is_sigreturn(u64 code)
{
    return code == 0x0f0000000fc0c748ull || (code & 0x00ffffffffffffffull) == 0x00050f0000000fb8ull;
}

/* Reads uc_mcontext from a struct rt_sigframe. The stack pointer points to its `uc` once the handler has returned. */
INLINE long read_signal_frame(u64 sp, struct registers *to)
{
    u64 words[17];
    if (bpf_probe_read_user(words, sizeof(words), (void *)(sp + 40)))
        return 1;
    to->r8 = words[0], to->r9 = words[1], to->r10 = words[2], to->r11 = words[3];
    to->r12 = words[4], to->r13 = words[5], to->r14 = words[6], to->r15 = words[7];
    to->di = words[8], to->si = words[9], to->bp = words[10], to->bx = words[11];
    to->dx = words[12], to->ax = words[13], to->cx = words[14], to->sp = words[15];
    to->ip = words[16];
    return 0;
}

#elif defined(TARGET_AARCH64)

struct registers {
    u64 x[31], sp, pc, pstate;
};

#define PC(registers) ((registers)->pc)
#define SP(registers) ((registers)->sp)
#define FP(registers) ((registers)->x[29])
#define BX(registers) ((registers)->x[19])
#define FP_NUMBER 29
#define BX_NUMBER 19
#define SP_NUMBER 31
#define LINK_NUMBER 30
#define REGISTERS 32
#define IS_USER(registers) (((registers)->pstate & 0xf) == 0)
#define IS_COMPAT(registers) (((registers)->pstate & 0x10) != 0)
/* Always 0, because pt_regs.syscallno is not part of the ABI. So the leaf may be the instruction after the system call,
 * which is in the same function. */
#define IS_SYSCALL(registers) 0

/* Copies the registers to an array whose index is the DWARF number. */
INLINE void number_registers(const struct registers *from, u64 *to)
{
    for (int i = 0; i < 31; i++)
        to[i] = from->x[i];
    to[SP_NUMBER] = from->sp;
}

/* Returns 1 for the code that a signal handler returns to: `mov x8, #139; svc #0`. */
INLINE int is_sigreturn(u64 code)
{
    return code == 0xd4000001d2801168ull;
}

/* Reads uc_mcontext, after its fault address, from struct rt_sigframe { siginfo, ucontext } at the stack pointer. */
INLINE long read_signal_frame(u64 sp, struct registers *to)
{
    return bpf_probe_read_user(to, sizeof(*to), (void *)(sp + 128 + 176 + 8));
}

#else
#error "no register layout for this machine: add one here"
#endif

/* Context of a BPF program of type perf_event. */
struct perf_event_context {
    struct registers registers; /* registers of the interrupted code, user or kernel */
    u64 sample_period;
    u64 address;
};
