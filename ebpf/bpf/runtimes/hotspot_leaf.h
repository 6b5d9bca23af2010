/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Innermost frames of HotSpot's code, and those that a signal interrupted. The frame may not be set up yet, or be
 * removed already. The instructions around pc tell which.
 *
 * The rules were found by single steps through the code of each version. A frame that is not set up has two forms: its
 * return address is at sp (step_from_return), or the caller's frame pointer is at sp, and the return address above it
 * (step_from_pushed).
 */
#pragma once

#include "../scratch.h"
#include "../types.h"
#include "hotspot_frame.h"

#ifdef TARGET_X86_64

/* DWARF numbers of registers with a meaning in HotSpot's code. */
#define AX_NUMBER 0
#define DI_NUMBER 5
#define R13_NUMBER 13 /* in the interpreter: the bytecode, the caller's stack pointer, or the return address */
#define R15_NUMBER 15 /* the thread */

/* Index of the current instruction in the copied code. */
#define AT HOTSPOT_CODE_BEFORE
/* Instructions at the start of a stub within which it sets up its frame pointer, in bytes. */
#define STUB_START_BYTES 5
/* Longest sequence that returns, in bytes. */
#define RETURN_BYTES 15
/* Distance from `leave` to the return of a wrapper, in bytes. */
#define LEAVE_BYTES 24
/* Instructions before the first complete frame of code without such a position, in bytes. */
#define START_BYTES 16

INLINE u32 two_bytes(const u8 *code) { return code[0] << 8 | code[1]; }
INLINE u32 three_bytes(const u8 *code) { return two_bytes(code) << 8 | code[2]; }
INLINE u32 four_bytes(const u8 *code) { return three_bytes(code) << 8 | code[3]; }

/* Returns 1 if both numbers are equal, and else 0. Branchless, because the verifier follows both ways of a branch. */
INLINE u32 is_equal(u32 a, u32 b)
{
    u64 difference = a ^ b;
    asm volatile("" : "+r"(difference));
    return (difference - 1) >> 63;
}

/* Returns 1 if the code at an index of the copy returns: at once, or after it has polled whether a safepoint is due.
 * Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int is_return(struct scratch *scratch, u32 index)
{
    if (!scratch || index > HOTSPOT_CODE_BYTES - RETURN_BYTES)
        return 0;
    const u8 *code = scratch->hotspot.bytes + index;
    u32 two = two_bytes(code), three = three_bytes(code);
    /* ret */
    if (code[0] == 0xc3 || code[0] == 0xc2)
        return 1;
    /* cmp rsp, [r15 + offset]; ja */
    if (three == 0x493b67)
        return two_bytes(code + 4) == 0x0f87 && code[10] == 0xc3;
    if (three == 0x493ba7)
        return two_bytes(code + 7) == 0x0f87 && code[13] == 0xc3;
    /* ja, or jne */
    if (two == 0x0f87 || two == 0x0f85)
        return code[6] == 0xc3;
    /* cmp qword [r15 + offset], 0; jne */
    if (three == 0x49837f)
        return two_bytes(code + 5) == 0x0f85 && code[11] == 0xc3;
    if (three == 0x49817f)
        return two_bytes(code + 8) == 0x0f85 && code[14] == 0xc3;
    /* test [r10], eax; r10 may be loaded from the thread, or be a constant */
    if (three == 0x418502)
        return code[3] == 0xc3;
    if (three == 0x4d8b57)
        return four_bytes(code + 4) == 0x418502c3;
    if (three == 0x4d8b97)
        return four_bytes(code + 7) == 0x418502c3;
    if (two == 0x49ba)
        return four_bytes(code + 10) == 0x418502c3;
    /* test [rip + offset], eax */
    return two == 0x8505 && code[6] == 0xc3;
}

/* Returns 1 if `code` stores r10 in the thread as the address at which a safepoint stops it. */
INLINE int saves_pc(const struct scratch *scratch, const u8 *code)
{
    u32 offset = hotspot_offset_of(scratch, HOTSPOT_SAVED_PC);
    return three_bytes(code) == 0x4d8997 && (code[3] | code[4] << 8 | code[5] << 16 | (u32)code[6] << 24) == offset;
}

/* Returns 1 if the code at pc is that to which a poll before a return jumps. Not inlined, so that the verifier checks
 * the function once. */
__attribute__((noinline)) int is_return_poll(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    const u8 *code = scratch->hotspot.bytes + AT;
    /* lea r10, [rip + offset]; or a constant */
    if (three_bytes(code) == 0x4c8d15)
        return saves_pc(scratch, code + 7);
    if (two_bytes(code) == 0x49ba)
        return saves_pc(scratch, code + 10);
    if (code[0] == 0xe9)
        return saves_pc(scratch, code - 7);
    return saves_pc(scratch, code) && code[7] == 0xe9;
}

/* Returns 1 if the wrapper of a native method has left its frame: after `leave`, it tests the thread. Not inlined, so
 * that the verifier checks the function once. */
__attribute__((noinline)) int is_left(struct scratch *scratch)
{
    u32 left = 0;
    if (!scratch)
        return 0;
    for (u32 i = AT - LEAVE_BYTES; i < AT; i++) {
        u32 four = four_bytes(scratch->hotspot.bytes + i);
        left |= is_equal(four, 0xc949817f) | is_equal(four, 0xc949837f) | is_equal(four, 0xc941f647);
    }
    return left;
}

INLINE int step_from_return(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    return copy_words(scratch, hotspot->sp, 1) &&
           return_to(scratch, hotspot->words[0], hotspot->sp + 8, hotspot->fp);
}

INLINE int step_from_pushed(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    return copy_words(scratch, hotspot->sp, 2) &&
           return_to(scratch, hotspot->words[1], hotspot->sp + 16, hotspot->words[0]);
}

/* Copies the code around pc. Returns 0 if it cannot be read. */
INLINE int copy_code(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    return !bpf_probe_read_user(hotspot->bytes, sizeof(hotspot->bytes), (void *)(hotspot->pc - AT));
}

/* Steps from the code of a stub that sets up a frame pointer. Returns 0 if there is no frame. Not inlined, so that the
 * verifier checks the function once. */
__attribute__((noinline)) int step_in_stub(struct scratch *scratch)
{
    u64 saved;
    u8 first[2];
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    u64 offset = hotspot->pc - hotspot->code, sp = hotspot->sp;
    if (bpf_probe_read_user(first, sizeof(first), (void *)hotspot->code))
        return 0;
    /* push rbx; push rbp: a poll jumps here. Its return address is in the thread, until it is in the place of rbx. */
    int is_poll = first[0] == 0x53 && first[1] == 0x55;
    u64 thread = scratch->registers[R15_NUMBER];
    if (is_poll && bpf_probe_read_user(&saved, sizeof(saved),
                                       (void *)(thread + hotspot_offset_of(scratch, HOTSPOT_SAVED_PC))))
        return 0;
    if (is_poll && offset < 2)
        return return_to(scratch, saved, sp + 8 * offset, hotspot->fp);
    if (is_poll && offset == 2)
        return copy_words(scratch, sp, 1) && return_to(scratch, saved, sp + 16, hotspot->words[0]);
    if (!is_poll && offset == 1 && first[0] == 0x55)
        return step_from_pushed(scratch);
    if (!step_by_hotspot_fp(scratch))
        return 0;
    if (is_poll && !is_in_code(scratch, hotspot->pc))
        hotspot->pc = saved;
    return is_in_code(scratch, hotspot->pc);
}

/* Returns 1 + the index in the copied code of the last instruction that is complete before pc and not before `start`:
 * `sub rsp` (is_sub), or else `push rbp; mov rbp, rsp`. Returns 0 if there is none. Not inlined, so that the verifier
 * checks the function once. */
__attribute__((noinline)) int find_before(struct scratch *scratch, u32 start, u32 is_sub)
{
    u32 found = 0;
    if (!scratch)
        return 0;
    const u8 *bytes = scratch->hotspot.bytes;
    for (u32 i = 0; i + 4 <= AT; i++) {
        u32 four = four_bytes(bytes + i), three = four >> 8;
        u32 sub = is_equal(three, 0x4883ec) | (is_equal(three, 0x4881ec) & (i + 7 <= AT));
        u32 set = is_equal(four, 0x55488bec) | is_equal(four, 0x554889e5);
        s64 fits = ((s64)((is_sub ? sub : set) & 1) - 1) | ((s64)i - start);
        /* The last one counts. */
        found += step_if(i + 1 - found, fits);
    }
    return found;
}

/* Returns 1 if one of the four bytes before an index of the copied code is `push rbp`. Not inlined, so that the
 * verifier checks the function once. */
__attribute__((noinline)) int has_push_before(struct scratch *scratch, u32 index, u32 start)
{
    u32 found = 0;
    if (!scratch || index > AT)
        return 0;
    for (u32 i = 1; i <= 4; i++)
        found |= is_equal(scratch->hotspot.bytes[(index - i) % AT], 0x55) & step_if(1, (s64)index - i - start);
    return found;
}

/* Steps from the start of code, before its frame is complete. Returns -1 if the frame is complete nevertheless. Not
 * inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int step_in_start(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    const u8 *at = hotspot->bytes + AT;
    u64 offset = hotspot->pc - hotspot->code;
    u32 start = offset < AT ? AT - offset : 0;
    u32 sub = find_before(scratch, start, 1);
    if (sub) {
        u32 stores = three_bytes(at);
        /* Methods that call nothing store the frame pointer after this. */
        if (has_push_before(scratch, sub - 1, start) || (stores != 0x48896c && stores != 0x4889ac))
            return -1;
        u64 end = hotspot->sp + hotspot->frame_bytes;
        return copy_words(scratch, end - 8, 1) && return_to(scratch, hotspot->words[0], end, hotspot->fp);
    }
    if (find_before(scratch, start, 0))
        return step_in_stub(scratch);
    if (offset && at[-1] == 0x55)
        return hotspot->is_compiled ? step_from_pushed(scratch) : step_in_stub(scratch);
    if (!hotspot->is_compiled && (two_bytes(at) == 0x5355 || (at[-1] == 0x53 && at[0] == 0x55)))
        return step_in_stub(scratch);
    return step_from_return(scratch);
}

/* Returns 1 if the code around pc is the end of a function whose frame is removed already. Not inlined, so that the
 * verifier checks the function once. */
__attribute__((noinline)) int is_removed(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    const struct hotspot *hotspot = &scratch->hotspot;
    const u8 *at = hotspot->bytes + AT;
    if (is_return(scratch, AT) || is_return_poll(scratch))
        return 1;
    /* add rsp; pop rbp */
    if (at[-1] == 0x5d && (three_bytes(at - 5) == 0x4883c4 || three_bytes(at - 8) == 0x4881c4))
        return 1;
    return hotspot->is_compiled && (!hotspot->frame_bytes || is_left(scratch));
}

/* Steps from a blob with a frame, or from a compiled method. Returns 2 if the frame is complete, so that calls inlined
 * there are known; 1 if it is not; and 0 if there is no frame. Not inlined, so that the verifier checks the function
 * once. */
__attribute__((noinline)) int step_in_frame(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    const u8 *at = hotspot->bytes + AT;
    u64 offset = hotspot->pc - hotspot->code, end = hotspot->sp + hotspot->frame_bytes;
    int stub = !hotspot->is_compiled;
    /* pop rbp, and then ret or jmp */
    if (at[0] == 0x5d && (at[1] == 0xe9 || is_return(scratch, AT + 1)))
        return step_from_pushed(scratch);
    if (is_removed(scratch))
        return step_from_return(scratch);
    if (stub && !offset && two_bytes(at) != 0x5355)
        return step_from_return(scratch);
    /* Stubs that save all registers lower sp in several steps. */
    if (stub && offset >= STUB_START_BYTES && hotspot->fp - hotspot->sp < hotspot->frame_bytes)
        return step_in_stub(scratch);
    if (hotspot->complete < 0 ? offset < START_BYTES : offset < (u32)hotspot->complete) {
        int stepped = step_in_start(scratch);
        if (stepped >= 0)
            return stepped;
    }
    /* Arguments of a stub are on the stack: the code calls the stub, or has called it. */
    if (!stub)
        end += count_pops(at[0] == 0xe8 ? at + 5 : at) * sizeof(u64);
    if (!copy_words(scratch, end - 16, 8) && !copy_words(scratch, end - 16, 2))
        return 0;
    for (int i = 0; i <= PUSHED_WORDS_MAX; i++)
        if (is_in_code(scratch, hotspot->words[i + 1]))
            return 2 * return_to(scratch, hotspot->words[i + 1], end + 8 * i, hotspot->words[i]);
    return stub ? step_in_stub(scratch) : 0;
}

/* Steps from a blob without a frame of its own: a stub, or an adapter between callers and methods. Not inlined, so that
 * the verifier checks the function once. */
__attribute__((noinline)) int step_without_frame(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    const u8 *at = hotspot->bytes + AT;
    u64 sp = hotspot->sp, fp = hotspot->fp, sender_sp = scratch->registers[R13_NUMBER];
    u64 ax = scratch->registers[AX_NUMBER];
    u64 *words = hotspot->words;
    if (at[0] == 0x55 || is_return(scratch, AT))
        return step_from_return(scratch);
    if (at[-1] == 0x55 || four_bytes(at - 4) == 0x55488bec || four_bytes(at - 4) == 0x554889e5)
        return step_from_pushed(scratch);
    if (fp - sp < 64 && copy_words(scratch, fp, 2) && (words[1] == STUB_COOKIE || is_in_code(scratch, words[1])))
        return step_by_hotspot_fp(scratch);
    if (copy_words(scratch, sp, 1) && is_in_code(scratch, words[0]))
        return step_from_return(scratch);
    if (is_in_code(scratch, ax) && sender_sp - (sp - 16) < HOTSPOT_REACH)
        return return_to(scratch, ax, sender_sp, fp);
    return step_in_small_stub(scratch, 1) || step_by_hotspot_fp(scratch);
}

/* Records and leaves an entry of the interpreter, in which r13 is the caller's stack pointer, or an exit. Returns -1 in
 * the body of the interpreter. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int step_at_edge(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    const u8 *at = hotspot->bytes + AT;
    u64 sp = hotspot->sp, fp = hotspot->fp, bx = hotspot->bx;
    u64 r13 = scratch->registers[R13_NUMBER], ax = scratch->registers[AX_NUMBER], di = scratch->registers[DI_NUMBER];
    u64 *words = hotspot->words;
    int is_entry = r13 - (sp - 8) < HOTSPOT_REACH;
    u32 built = hotspot_offset_of(scratch, HOTSPOT_FRAME_BYTECODE);
    if (!copy_words(scratch, sp, 2))
        return 0;
    u64 first = words[0], second = words[1], caller = 0, caller_sp = r13, caller_fp = fp;
    if (is_entry && is_in_code(scratch, first)) {
        caller = first;
    } else if (fp - sp < built && copy_words(scratch, fp - 8, 3) && is_in_code(scratch, words[2]) &&
               (!is_entry || fp == sp || words[0] == r13 || three_bytes(at - 3) == 0x488bec)) {
        /* The frame is being built: the method and the bytecode are not pushed yet. */
        caller = words[2];
        caller_fp = words[1];
        if (!is_entry)
            caller_sp = fp - sp >= 8 && words[0] - fp - 1 < HOTSPOT_REACH ? words[0] : fp + 16;
    } else if (is_entry && is_in_code(scratch, second) && at[-1] == 0x55) {
        caller = second;
        caller_fp = first;
    } else if (is_entry && is_in_code(scratch, ax)) {
        caller = ax;
    } else if (is_entry && is_in_code(scratch, di)) {
        caller = di;
    }
    if (caller) {
        push_method_frame(scratch, bx, HOTSPOT_START, 0);
        return return_to(scratch, caller, caller_sp, caller_fp);
    }
    if (is_entry)
        return -1;
    u64 exit_sp = bx - sp < HOTSPOT_REACH ? bx : 0;
    if (is_in_code(scratch, r13))
        return return_to(scratch, r13, exit_sp ? exit_sp : sp, fp);
    if (two_bytes(at) == 0x415d && at[-1] == 0xc9)
        return return_to(scratch, first, exit_sp ? exit_sp : sp + 8, fp);
    return -1;
}

/* Records the innermost frame, and steps to its caller. Returns 0 if there is none. */
INLINE int step_in_leaf(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    u64 pc = hotspot->pc;
    if (!copy_code(scratch))
        return 0;
    if (is_in_interpreter(scratch, pc)) {
        int stepped = step_at_edge(scratch);
        return stepped >= 0 ? stepped : step_in_interpreter(scratch, scratch->registers[R13_NUMBER]);
    }
    if (!read_blob(scratch, pc))
        return 0;
    int has_frame = hotspot->is_compiled || hotspot->frame_bytes;
    int stepped = has_frame ? step_in_frame(scratch) : step_without_frame(scratch);
    push_code_frame(scratch, pc, stepped == 2 ? 0 : HOTSPOT_WITHOUT_INLINED);
    return stepped != 0;
}

#endif
