/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steps from code that a program has compiled in memory to the code that called it. Such code has no unwind table, and
 * this one keeps no frame pointers either.
 *
 * Ruby (YJIT, Ruby 3.1 and later): the loop calls compiled code, which saves three registers. Compiled functions call
 * each other without the native stack, so there is one native frame, however many functions run. More registers are on
 * the stack while the code calls the compiler itself, and with the option --yjit-perf.
 *
 * PCRE2: a compiled regular expression saves five registers, and has words of its own: two for each group. PCRE2 is a
 * library, or part of PHP.
 *
 * Both are called through a pointer. The return address is therefore the first one on the stack that follows such a
 * call and leads into the code that makes these calls (struct runtime.callers).
 */
#pragma once

#include "../mappings/mapped.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Number of frames on one stack that can be those of such code. */
#define COMPILED_MAX 32
/* Number of windows of the stack that are searched: those of an expression with about 120 groups. */
#define COMPILED_WINDOWS 4
/* Bytes before a return address that are read. The longest instruction that calls through a pointer has 7. */
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

/* Reads the bytes before an address, at which a call may end. Returns 0 on success. */
INLINE long read_call(u8 *code, u64 address)
{
    return bpf_probe_read_user(code, CALL_BYTES, (void *)(address - CALL_BYTES));
}

/* Returns 1 if the instruction before an address is a call through a pointer: ff and a byte whose middle bits are 2,
 * followed by up to five bytes. */
INLINE int follows_call(u64 address)
{
    u8 code[CALL_BYTES + 1];
    if (read_call(code, address))
        return 0;
    for (u32 i = 0; i + 2 <= CALL_BYTES; i++)
        if (code[i] == 0xff && (code[i + 1] & 0x38) == 0x10)
            return 1;
    return 0;
}

/* Returns 1 if the instruction before an address is a direct call of a function in a file with Ruby: e8, and the
 * distance to the function. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int follows_call_of_ruby(struct scratch *scratch, u64 mm, u64 address)
{
    u8 code[CALL_BYTES + 1];
    int distance;
    if (!scratch || read_call(code, address) || code[2] != 0xe8)
        return 0;
    __builtin_memcpy(&distance, code + 3, sizeof(distance));
    scratch->compiler.end = 0;
    if (!map_address(&scratch->compiler, mm, address + distance, scratch->header.pid))
        return 0;
    struct runtime *runtime = find_runtime(scratch->compiler.runtime);
    return runtime && runtime->kind == RUNTIME_RUBY;
}

/* Returns the kind of the runtime into whose `callers` a word leads, if it is a return address after a call through a
 * pointer, and sets scratch->compiler to the file; -1 otherwise. Notes if the word leads into a file that has no table
 * yet. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int compiler_called_from(struct scratch *scratch, u64 mm, u64 word)
{
    if (!scratch || word < CODE_MIN || word >= CODE_MAX || !follows_call(word) ||
        !map_address(&scratch->compiler, mm, word, scratch->header.pid))
        return -1;
    struct runtime *runtime = find_runtime(scratch->compiler.runtime);
    if (runtime && is_in(&runtime->callers, word + scratch->compiler.to_address))
        return runtime->kind;
    scratch->is_compiler_unsure |= scratch->compiler.number && scratch->compiler.table == NO_TABLE;
    return -1;
}

/* Looks for the return address in one window of the stack. Returns the kind of the compiler, and sets the frame's pc
 * and sp to those of the caller; -1 if there is none. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int find_compiler(struct scratch *scratch, struct compiled_frame *frame, u64 mm, u64 at)
{
    if (!scratch || !frame)
        return -1;
    struct window *stack = &scratch->stack;
    stack->bytes = 0;
    if (!read_window(stack, at, WINDOW_ASKED_MAX, WINDOW_ABOVE))
        return -1;
    for (u32 i = 0; i < WINDOW_WORDS && i < stack->bytes / sizeof(u64); i++) {
        int kind = compiler_called_from(scratch, mm, stack->words[i]);
        if (kind < 0)
            continue;
        frame->pc = stack->words[i];
        frame->sp = at + (i + 1) * sizeof(u64);
        return kind;
    }
    return -1;
}

/* Reads a register that was saved some words below the return address. Code that has just begun has not saved it. */
INLINE void read_saved(u64 *saved, const struct compiled_frame *frame, u64 sp, u32 words)
{
    u64 at = frame->sp - (words + 1) * sizeof(u64);
    if (at >= sp)
        bpf_probe_read_user(saved, sizeof(*saved), (void *)at);
}

/* Replaces the registers of compiled code by those of its caller. Returns 0 if there is none. Sets scratch->mapped to
 * the caller's file. Not inlined, so that the verifier checks the function once.
 *
 * Most programs with code in memory have no such code, so a program in which the search fails is not searched again
 * until the next epoch. */
__attribute__((noinline)) int find_compiled_caller(struct scratch *scratch, struct compiled_frame *frame, u64 mm)
{
    if (!scratch || !frame || scratch->compiled >= COMPILED_MAX)
        return 0;
    struct known_program *program = known_program_at(mm);
    u32 now = current_epoch();
    if (program && program->mm == mm && program->is_searched && program->searched == now)
        return 0;
    u64 sp = frame->sp;
    int kind = -1;
    scratch->is_compiler_unsure = 0;
    scratch->compiler.end = 0;
    for (u32 i = 0; i < COMPILED_WINDOWS && kind < 0; i++)
        kind = find_compiler(scratch, frame, mm, sp + i * WINDOW_BYTES);
    program = known_program_at(mm);
    if (kind < 0) {
        scratch->compiled = COMPILED_MAX;
        if (program && program->mm == mm && !scratch->is_compiler_unsure && !program->has_compiler) {
            program->is_searched = 1;
            program->searched = now;
        }
        return 0;
    }
    if (program && program->mm == mm)
        program->has_compiler = 1;
    scratch->compiled += 1;
    scratch->mapped = scratch->compiler;
    read_saved(&frame->bx, frame, sp, kind == RUNTIME_RUBY ? RUBY_SAVED_BX : PCRE_SAVED_BX);
    if (kind != RUNTIME_RUBY)
        read_saved(&frame->fp, frame, sp, PCRE_SAVED_FP);
    return 1;
}

#else
INLINE int follows_call(u64 address) { return 0; }
INLINE int follows_call_of_ruby(struct scratch *scratch, u64 mm, u64 address) { return 0; }
INLINE int find_compiled_caller(struct scratch *scratch, struct compiled_frame *frame, u64 mm) { return 0; }
#endif
