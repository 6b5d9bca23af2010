/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Frames of HotSpot's code that are not innermost: their pc is a return address. hotspot_leaf.h has the innermost ones.
 *
 * - A frame of the interpreter is found by its frame pointer.
 * - A blob with a frame has its return address in the last word of the frame, and the caller's frame pointer before it.
 *   Such code may use the frame pointer for anything.
 * - Other blobs are stubs. Most of them keep frame pointers. A small blob is one stub. If this stub sets up no frame
 *   pointer, its return address is above the words that it has pushed.
 */
#pragma once

#include "../scratch.h"
#include "../types.h"
#include "../window.h"
#include "compiled.h"
#include "hotspot.h"

#ifdef TARGET_X86_64

/* Largest distance of frames that follow each other. */
#define HOTSPOT_REACH (1 << 20)
/* Words of a frame of the interpreter below the frame pointer, and the distance of some of them, in bytes. */
#define INTERPRETER_WORDS_BELOW 8
#define INTERPRETER_METHOD 24
#define INTERPRETER_SENDER_SP 8
/* Words below the frame pointer of the stub through which native code calls Java: the structure of this call, and the
 * caller's bx. */
#define CALL_STUB_WRAPPER 6
#define CALL_STUB_BX 7
/* The structure is in the frame of the function that calls the stub. */
#define CALL_STUB_REACH 1024

/* Words above the end of a frame in which its return address is searched, because instructions can push words. */
#define PUSHED_WORDS_MAX 6
/* Words in which the return address of a small stub is searched: it can save nearly all registers. */
#define SAVED_WORDS_MAX 14
/* Size of blobs that are one stub, in bytes. The smallest blob with several stubs has 2,000. */
#define SMALL_STUB_BYTES 1024
/* The word that a stub pushes below its return address, as a place for another stack pointer. */
#define STUB_COOKIE (~0ull)

INLINE int is_in_code(const struct scratch *scratch, u64 address) { return hotspot_heap_of(scratch, address) != 0; }

INLINE int is_in_interpreter(const struct scratch *scratch, u64 address)
{
    const struct hotspot_process *process = &scratch->hotspot.process;
    return process->interpreter_start <= address && address < process->interpreter_end;
}

/* Sets the registers of the caller. Returns 1. */
INLINE int return_to(struct scratch *scratch, u64 pc, u64 sp, u64 fp)
{
    struct hotspot *hotspot = &scratch->hotspot;
    hotspot->pc = pc;
    hotspot->sp = sp;
    hotspot->fp = fp;
    return 1;
}

/* Copies `count` words of the stack at an address to hotspot->words. Returns 0 if they cannot be read,
 * and the words are 0 then. */
INLINE int copy_words(struct scratch *scratch, u64 address, u32 count)
{
    int is_read = read_window(&scratch->stack, address, count * sizeof(u64), WINDOW_ABOVE);
    for (u32 i = 0; i < count; i++)
        scratch->hotspot.words[i] = is_read ? window_word(&scratch->stack, address + i * sizeof(u64)) : 0;
    return is_read;
}

/* Steps by the frame pointer. Returns 0 if there is no frame. Not inlined, so that the verifier checks the function
 * once. */
__attribute__((noinline)) int step_by_hotspot_fp(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    u64 fp = hotspot->fp, sp = hotspot->sp;
    u64 *words = hotspot->words;
    if (fp - sp >= HOTSPOT_REACH || !copy_words(scratch, fp, 2))
        return 0;
    u64 pc = words[1], end = fp + 16, caller_fp = words[0];
    /* Compiled methods call such a stub when they begin. */
    if (pc == STUB_COOKIE) {
        if (!copy_words(scratch, end, 1))
            return 0;
        pc = words[0];
        end += 8;
    }
    return_to(scratch, pc, end, caller_fp);
    if (is_in_code(scratch, pc))
        return 1;
    /* The stub was called from native code, which may need bx. Stubs for other calls save it elsewhere. */
    hotspot->bx = 0;
    if (copy_words(scratch, fp - CALL_STUB_BX * 8, 2) && words[1] - fp < CALL_STUB_REACH)
        hotspot->bx = words[0];
    return 1;
}

/* Records a frame of the interpreter, and steps to its caller. `bytecode` is the address of the bytecode, if it is in
 * the method. Else the saved address counts. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int step_in_interpreter(struct scratch *scratch, u64 bytecode)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    u64 fp = hotspot->fp, sp = hotspot->sp;
    if (fp - (sp - 16) >= HOTSPOT_REACH ||
        !read_window(&scratch->stack, fp - INTERPRETER_WORDS_BELOW * 8, INTERPRETER_WORDS_BELOW * 8 + 16, WINDOW_ABOVE))
        return 0;
    const struct window *stack = &scratch->stack;
    u64 method = window_word(stack, fp - INTERPRETER_METHOD);
    u64 sender_sp = window_word(stack, fp - INTERPRETER_SENDER_SP);
    u64 caller_fp = window_word(stack, fp), pc = window_word(stack, fp + 8);
    u64 saved = window_word(stack, fp - hotspot_offset_of(scratch, HOTSPOT_FRAME_BYTECODE));
    push_method_frame(scratch, method, bytecode, saved);
    /* The locals of the method may lie above those that its caller has pushed. */
    return return_to(scratch, pc, sender_sp - fp - 1 < HOTSPOT_REACH ? sender_sp : fp + 16, caller_fp);
}

/* Returns the address in the code of a frame, if the frame returns to the handler of code that is not valid any more.
 * Else returns pc. */
INLINE u64 valid_pc(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    u32 deopt = hotspot_offset_of(scratch, HOTSPOT_DEOPT), handle = hotspot_offset_of(scratch, HOTSPOT_DEOPT_HANDLE);
    u64 handler = blob_word(scratch, deopt), handle_handler = blob_word(scratch, handle), pc = hotspot->pc;
    if (hotspot_form(scratch) & HOTSPOT_DEOPT_OFFSET_FORM) {
        handler = hotspot->blob + (int)blob_int(scratch, deopt);
        handle_handler = hotspot->blob + (int)blob_int(scratch, handle);
    }
    if (pc != handler && (!handle || pc != handle_handler))
        return pc;
    int original = blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_ORIGINAL_PC));
    if (bpf_probe_read_user(&pc, sizeof(pc), (void *)(hotspot->sp + original)))
        return hotspot->pc;
    return pc;
}

/* Returns 1 if an address is one to which code returns: in the interpreter, or after a call. */
INLINE int is_return_address(const struct scratch *scratch, u64 address)
{
    u8 code[CALL_BYTES + 1];
    if (!is_in_code(scratch, address))
        return 0;
    if (is_in_interpreter(scratch, address))
        return 1;
    return !read_call(code, address) && (code[2] == 0xe8 || follows_call(address));
}

/* Steps from a stub that sets up no frame pointer to its caller. Returns 0 if it is not such a stub, or if there is no
 * caller. Not inlined, so that the verifier checks the function once.
 *
 * The stub may have pushed registers of its caller, which are no return addresses. To call native code, it may have
 * left a word free below them, to align sp. */
__attribute__((noinline)) int step_in_small_stub(struct scratch *scratch, u32 is_innermost)
{
    u8 first, next[4];
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    u64 at = hotspot->sp;
    if (blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_SIZE)) >= SMALL_STUB_BYTES ||
        bpf_probe_read_user(&first, sizeof(first), (void *)hotspot->code) || first == 0x55 ||
        bpf_probe_read_user(next, sizeof(next), (void *)hotspot->pc))
        return 0;
    /* add rsp, 8 */
    if (!is_innermost && next[0] == 0x48 && next[1] == 0x83 && next[2] == 0xc4 && next[3] == 8)
        at += 8;
    for (u32 i = 0; i < SAVED_WORDS_MAX; i++) {
        u64 word;
        if (bpf_probe_read_user(&word, sizeof(word), (void *)at))
            return 0;
        at += sizeof(word);
        if (is_return_address(scratch, word))
            return return_to(scratch, word, at, hotspot->fp);
    }
    return 0;
}

/* Returns the number of words that code pops at once, at most two. The first compiler pushes the arguments of a stub,
 * and pops them after the call. */
INLINE u32 count_pops(const u8 *code)
{
    u32 one = code[0] == 0x41, first = (code[one] & 0xf8) == 0x58, at = one + 1;
    u32 two = code[at] == 0x41, second = (code[at + two] & 0xf8) == 0x58;
    return first ? 1 + second : 0;
}

/* Steps to the caller of a frame of the size hotspot->frame_bytes, whose lowest word is at sp. Returns 0 if there is
 * none. */
INLINE int step_by_size(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    u64 end = hotspot->sp + hotspot->frame_bytes;
    if (!copy_words(scratch, end - 16, 2))
        return 0;
    return return_to(scratch, hotspot->words[1], end, hotspot->words[0]);
}

/* Records the frame that a return address leads to, and steps to its caller. Returns 0 if there is none. */
INLINE int step_in_code(struct scratch *scratch)
{
    struct hotspot *hotspot = &scratch->hotspot;
    const struct hotspot_process *process = &hotspot->process;
    u8 code[4];
    if (is_in_interpreter(scratch, hotspot->pc - 1))
        return step_in_interpreter(scratch, 0);
    if (hotspot->pc == process->barrier) {
        /* Frames of the virtual thread are in the Java heap. Its entry, above the others, has the caller's frame. */
        u64 entry = hotspot->sp + process->entry_bytes;
        scratch->runtime = process->runtime;
        push_runtime_frame(scratch, HOTSPOT_CODE_FRAME, 0, 1);
        scratch->runtime = 0;
        return copy_words(scratch, entry, 2) && return_to(scratch, hotspot->words[1], entry + 16, hotspot->words[0]);
    }
    if (!read_blob(scratch, hotspot->pc - 1))
        return 0;
    if (hotspot->is_compiled && !bpf_probe_read_user(code, sizeof(code), (void *)hotspot->pc))
        hotspot->sp += count_pops(code) * sizeof(u64);
    push_code_frame(scratch, (hotspot->is_compiled ? valid_pc(scratch) : hotspot->pc) - 1, 0);
    if (!hotspot->frame_bytes)
        return step_in_small_stub(scratch, 0) || step_by_hotspot_fp(scratch);
    /* Compiled methods are only called by code in a heap. */
    return step_by_size(scratch) && (!hotspot->is_compiled || is_in_code(scratch, hotspot->pc));
}

#endif
