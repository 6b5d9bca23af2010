/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steps from code that a program has compiled to the code that called it. Compiled code has no unwind table, and this
 * one keeps no frame pointers either.
 *
 * Ruby (YJIT, Ruby 3.1 and later): the loop calls compiled code, which saves three registers. Compiled functions call
 * each other without the native stack, so there is one native frame, however many functions run. More registers are on
 * the stack while the code calls the compiler itself, and with the option --yjit-perf.
 *
 * PCRE2: a compiled regular expression saves five registers, and has words of its own.
 *
 * The return address is therefore the first one on the stack that leads into the file of the compiler.
 */
#pragma once

#include "../mappings/mapped.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Number of frames on one stack that can be those of such code. */
#define COMPILED_MAX 32
/* Bytes of the longest instruction that calls. */
#define CALL_BYTES 7
/* Addresses that are sought: above small numbers, and below the kernel's. */
#define CODE_MIN (1ull << 16)
#define CODE_MAX (1ull << 47)
/* Places of saved registers, in words below the return address. */
#define RUBY_SAVED_BX 3
#define PCRE_SAVED_BX 1
#define PCRE_SAVED_FP 5

/* Registers of a frame. */
struct compiled_frame {
    u64 pc, sp, fp, bx;
};

#ifdef TARGET_X86_64

/* Returns 1 if the instruction before an address is a call: e8 and four bytes, or ff and a byte whose middle bits are
 * 2, followed by up to five bytes. */
INLINE int follows_call(u64 address)
{
    u8 code[CALL_BYTES + 1];
    if (bpf_probe_read_user(code, CALL_BYTES, (void *)(address - CALL_BYTES)))
        return 0;
    if (code[CALL_BYTES - 5] == 0xe8)
        return 1;
    for (u32 i = 0; i + 2 <= CALL_BYTES; i++)
        if (code[i] == 0xff && (code[i + 1] & 0x38) == 0x10)
            return 1;
    return 0;
}

/* Replaces the registers of compiled code by those of its caller. Returns 0 if there is none. Changes scratch->mapped.
 * Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int step_over_compiled(struct scratch *scratch, struct compiled_frame *frame, u64 mm)
{
    if (!scratch || !frame || scratch->compiled >= COMPILED_MAX)
        return 0;
    struct window *stack = &scratch->stack;
    u32 count = scratch->compiled;
    /* In other programs, the search is made once in a walk. */
    scratch->compiled = COMPILED_MAX;
    stack->bytes = 0;
    if (!read_window(stack, frame->sp, WINDOW_ASKED_MAX, WINDOW_ABOVE))
        return 0;
    for (u32 i = 0; i < WINDOW_WORDS && i < stack->bytes / sizeof(u64); i++) {
        u64 word = stack->words[i];
        if (word < CODE_MIN || word >= CODE_MAX || !follows_call(word) ||
            !map_address(&scratch->mapped, mm, word, scratch->header.pid))
            continue;
        struct runtime *runtime = find_runtime(scratch->mapped.runtime);
        if (!runtime || (runtime->kind != RUNTIME_RUBY && runtime->kind != RUNTIME_PCRE))
            continue;
        int is_pcre = runtime->kind == RUNTIME_PCRE;
        u32 saved_bx = is_pcre ? PCRE_SAVED_BX : RUBY_SAVED_BX;
        scratch->compiled = count + 1;
        frame->pc = word;
        frame->sp += (i + 1) * sizeof(u64);
        /* Code that has just begun has not saved them yet. */
        if (i >= saved_bx)
            frame->bx = stack->words[(i - saved_bx) % WINDOW_WORDS];
        if (is_pcre && i >= PCRE_SAVED_FP)
            frame->fp = stack->words[(i - PCRE_SAVED_FP) % WINDOW_WORDS];
        return 1;
    }
    return 0;
}

#else
INLINE int follows_call(u64 address) { return 1; }
INLINE int step_over_compiled(struct scratch *scratch, struct compiled_frame *frame, u64 mm) { return 0; }
#endif
