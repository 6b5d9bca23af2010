/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Per-CPU memory in which one record is built, and in which the walk of its user stack keeps its state. This memory is
 * larger than a BPF program's stack.
 */
#pragma once

#include "mapped.h"
#include "record.h"
#include "registers.h"
#include "tables.h"
#include "types.h"

/* Number of words of the stack that are copied at once: those that the current frame has saved, and those of its
 * callers, which lie above them. */
#define STACK_WORDS 32

struct scratch {
    struct sample_header header;
    /* Labels follow the frames. */
    u64 frames[KERNEL_FRAMES_MAX + USER_FRAMES_MAX + LABELS_MAX * sizeof(struct label) / sizeof(u64)];
    /* Registers of the innermost frame, or of a frame that a signal interrupted, by DWARF number. */
    u64 registers[REGISTERS];
    /* Copied words of the stack: the address of the first word, the number of words, and the words. */
    u64 stack_start;
    u64 stack_count;
    u64 stack[STACK_WORDS];
    struct mapped mapped;
    struct rule rule; /* rule of the current frame */
    /* State of the walk. It is not in struct walk, because the verifier would track each value of it there. */
    u64 go; /* Go offsets of the last Go program on the stack; 0: none */
    u32 steps_back;
    u32 end;           /* enum user_end */
    u32 is_exact;      /* 1 if pc is not a return address */
    u32 has_registers; /* 1 if `registers` are those of the current frame */
};
