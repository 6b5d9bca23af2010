/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The user stack by frame pointers, one bpf_loop() iteration a frame.
 *
 * A frame is | caller's frame pointer | return address |, and the outermost one's frame pointer is 0. Stacks grow down, so
 * frame pointers go up, except where a program changes stacks (a signal on its own stack, Go's system stack). Such steps back
 * are allowed a few times; an endless chain would need endlessly many.
 */
#pragma once

#include "record.h"
#include "registers.h"

#define STEPS_BACK_MAX 16
/* User addresses end below this on every supported machine, with five page table levels too. */
#define USER_ADDRESS_LIMIT (1ull << 56)

struct scratch {
    struct sample_header header;
    u64 frames[KERNEL_FRAMES_MAX + USER_FRAMES_MAX];
};

struct walk {
    struct scratch *scratch;
    u64 fp;
    u32 steps_back;
    u32 end; /* enum user_end */
};

/* Appends one frame; says no when the user part is full. */
INLINE int push_frame(struct scratch *scratch, u64 address)
{
    u32 user_frames = scratch->header.user_frames;
    u32 at = scratch->header.kernel_frames + user_frames;
    if (user_frames >= USER_FRAMES_MAX || at >= KERNEL_FRAMES_MAX + USER_FRAMES_MAX)
        return 0;
    scratch->frames[at] = address;
    scratch->header.user_frames = user_frames + 1;
    return 1;
}

#if defined(TARGET_X86_64)
/* `mov $15,%rax; syscall`, the code that a signal handler returns to: its first eight bytes. */
#define SIGRETURN_CODE 0x0f0000000fc0c748ull
/* From a handler's frame pointer: struct rt_sigframe starts at its return address, then comes struct ucontext. */
#define SIGNAL_CONTEXT_BP_OFFSET 136
#define SIGNAL_CONTEXT_BP_TO_IP 6
#define UC_FLAGS_MAX 7

/*
 * Whether `words`, the four at a frame pointer, are the frame of a signal handler. The two words that are already read (uc_flags
 * and uc_link) rule out nearly every other frame, so the code is seldom read.
 */
INLINE int is_signal_frame(const u64 *words)
{
    u64 code;
    if (words[2] > UC_FLAGS_MAX || words[3] != 0)
        return 0;
    return !bpf_probe_read_user(&code, sizeof(code), (void *)words[1]) && code == SIGRETURN_CODE;
}

/* Goes on where the signal struck: that address is neither a return address nor reachable by frame pointers. */
INLINE long step_over_signal(struct walk *walk, u64 trampoline)
{
    u64 context[SIGNAL_CONTEXT_BP_TO_IP + 1];
    if (bpf_probe_read_user(context, sizeof(context), (void *)(walk->fp + SIGNAL_CONTEXT_BP_OFFSET))) {
        walk->end = USER_END_BROKEN;
        return 1;
    }
    if (!push_frame(walk->scratch, trampoline) || !push_frame(walk->scratch, context[SIGNAL_CONTEXT_BP_TO_IP])) {
        walk->end = USER_END_TRUNCATED;
        return 1;
    }
    walk->fp = context[0];
    return 0;
}
#else
/* The arm64 kernel links its signal frame into the chain of frame pointers, so nothing special is needed to pass it. */
INLINE int is_signal_frame(const u64 *words)
{
    return 0;
}

INLINE long step_over_signal(struct walk *walk, u64 trampoline)
{
    return 1;
}
#endif

/* One frame; returns 1 at the end of the stack, with the reason in walk->end. */
static long walk_step(u32 index, struct walk *walk)
{
    u64 words[4];
    u64 fp = walk->fp;
    if (fp == 0) {
        walk->end = USER_END_ROOT;
        return 1;
    }
    walk->end = USER_END_BROKEN;
    if (fp & 7 || fp >= USER_ADDRESS_LIMIT)
        return 1;
    if (bpf_probe_read_user(words, sizeof(words), (void *)fp)) {
        /* The last frame of a stack may end with its page. */
        words[2] = -1;
        if (bpf_probe_read_user(words, 2 * sizeof(u64), (void *)fp))
            return 1;
    }
    u64 return_address = words[1];
    if (return_address == 0 || return_address >= USER_ADDRESS_LIMIT)
        return 1;
    if (words[0] != 0 && words[0] <= fp && ++walk->steps_back > STEPS_BACK_MAX)
        return 1;
    if (is_signal_frame(words))
        return step_over_signal(walk, return_address);
    if (!push_frame(walk->scratch, return_address - 1)) {
        walk->end = USER_END_TRUNCATED;
        return 1;
    }
    walk->fp = words[0];
    return 0;
}

/* Fills in the user part of the sample from the registers with which the thread left, or leaves, user mode. */
INLINE void walk_user(struct scratch *scratch, const struct registers *registers, int in_syscall)
{
    struct walk walk = { .scratch = scratch, .fp = FP(registers), .end = USER_END_TRUNCATED };
    push_frame(scratch, PC(registers) - (in_syscall ? 1 : 0));
    if (IS_COMPAT(registers)) {
        scratch->header.user_end = USER_END_COMPAT;
        return;
    }
    bpf_loop(USER_FRAMES_MAX + 1, walk_step, &walk, 0);
    scratch->header.user_end = walk.end;
}
