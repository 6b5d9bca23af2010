/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The step from a frame of the user stack to its caller: by the rules of the file's unwind table, by what is known of
 * compiled code, or by frame pointers.
 *
 * Stacks grow down, so the frame of a caller lies at a higher address, unless the program has changed stacks (for a
 * signal handler, or to Go's system stack). Up to STEPS_BACK_MAX steps to a lower address are allowed. This limit ends
 * the walk of frames that form a cycle.
 */
#pragma once

#include "mappings/mapped.h"
#include "record.h"
#include "registers.h"
#include "runtimes/compiled.h"
#include "runtimes/goroutine.h"
#include "runtimes/hotspot_leaf.h"
#include "runtimes/php_jit.h"
#include "runtimes/v8.h"
#include "scratch.h"
#include "tables.h"
#include "types.h"

#define STEPS_BACK_MAX 16
/* Limit of user addresses: they are below it on every supported machine, also with five page table levels. */
#define USER_ADDRESS_LIMIT (1ull << 56)
/* Number of words directly below the CFA (the stack pointer of the caller) in which nearly all functions save
 * registers. */
#define SAVED_WORDS 8

/* Number of words between the first frame of a stack and the end of its memory, at most. */
#define STACK_END_WORDS 8

struct walk {
    struct scratch *scratch;
    u64 mm;
    u64 pc, sp, fp, bx;
};

/* Ends the walk, and stores the reason, an enum user_end. Returns 1, which ends bpf_loop(). */
INLINE long stop(struct walk *walk, u32 end)
{
    walk->scratch->end = end;
    return 1;
}

/* Returns how a stack ends that has no caller at `sp`: at its root, if this is the end of its memory. The first frame
 * of a coroutine lies there. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) u32 end_at(u64 mm, u64 sp)
{
    u64 tree, end;
    if (READ_FIELD(tree, (struct mm_struct *)mm, mm_mt.ma_root))
        return USER_END_BROKEN;
    struct vm_area_struct *vma = (void *)find_vma(tree, sp - STACK_END_WORDS * sizeof(u64));
    if (!vma || READ_FIELD(end, vma, vm_end) || sp + STACK_END_WORDS * sizeof(u64) < end)
        return USER_END_BROKEN;
    return USER_END_ROOT;
}

/* Continues in the caller, if its registers are plausible. A return address of 0 is that of a first frame. */
INLINE long go_on(struct walk *walk, u64 return_address, u64 sp)
{
    struct scratch *scratch = walk->scratch;
    if (return_address >= USER_ADDRESS_LIMIT || sp >= USER_ADDRESS_LIMIT || sp & 7)
        return stop(walk, USER_END_BROKEN);
    if (return_address == 0)
        return stop(walk, end_at(walk->mm, sp));
    if (sp <= walk->sp && ++scratch->steps_back > STEPS_BACK_MAX)
        return stop(walk, USER_END_BROKEN);
    walk->pc = return_address;
    walk->sp = sp;
    scratch->is_exact = 0;
    scratch->has_registers = 0;
    return 0;
}

/* Continues in the code that a signal interrupted. The kernel saved its registers above the handler's frame. */
INLINE long step_over_signal(struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    struct registers registers;
    /* The trampoline did not call the handler, so the subtraction of one is undone: the address before its start often
     * belongs to another function. */
    u32 at = scratch->header.kernel_frames + scratch->header.user_words - 1;
    if (!scratch->is_exact && at < KERNEL_FRAMES_MAX + USER_WORDS_MAX)
        scratch->frames[at] += 1;
    if (read_signal_frame(walk->sp, &registers))
        return stop(walk, USER_END_BROKEN);
    number_registers(&registers, scratch->registers);
    walk->pc = PC(&registers);
    walk->sp = SP(&registers);
    walk->fp = FP(&registers);
    walk->bx = BX(&registers);
    scratch->is_exact = 1;
    scratch->has_registers = 1;
    return ++scratch->steps_back > STEPS_BACK_MAX ? stop(walk, USER_END_BROKEN) : 0;
}

/*
 * Steps to the caller by the frame pointer. A frame is | caller's frame pointer | return address |. The outermost frame
 * has 0 as its frame pointer. If a function has not set up its frame yet, its caller is missing, which cannot be
 * detected.
 */
INLINE long step_by_frame_pointer(struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    u64 fp = walk->fp;
    if (fp == 0)
        return stop(walk, USER_END_ROOT);
    if (fp >= USER_ADDRESS_LIMIT || !read_window(&scratch->stack, fp, 16, WINDOW_ABOVE))
        return stop(walk, end_at(walk->mm, walk->sp));
    walk->fp = window_word(&scratch->stack, fp);
    scratch->header.fp_frames += 1;
    return go_on(walk, window_word(&scratch->stack, fp + 8), fp + 16);
}

/* Returns the value of the register to which a rule's CFA is relative; 0 if the value is not known in this frame. */
INLINE u64 base_of(const struct walk *walk, u32 number)
{
    if (number == SP_NUMBER)
        return walk->sp;
    if (number == FP_NUMBER)
        return walk->fp;
    if (number == BX_NUMBER)
        return walk->bx;
    return walk->scratch->has_registers ? walk->scratch->registers[number % REGISTERS] : 0;
}

/* Computes the CFA of the current frame. Returns 1 if that fails. */
INLINE long cfa_of(const struct walk *walk, const struct rule *rule, u64 *cfa)
{
    if (rule->kind == RULE_PLT) {
        *cfa = walk->sp + 8 + ((walk->pc & 15) >= (u32)rule->cfa ? 8 : 0);
        return 0;
    }
    u64 base = base_of(walk, rule->base);
    if (base == 0)
        return 1;
    *cfa = base + rule->cfa;
    if (rule->kind == RULE_REGISTER)
        return 0;
    if (bpf_probe_read_user(cfa, sizeof(*cfa), (void *)*cfa))
        return 1;
    *cfa += rule->after;
    return 0;
}

/* Returns the value that a register has in the caller; 0 if it cannot be read. If the rule says that the value is lost,
 * returns 1, which is no valid address. A frame pointer of 0 would mean the outermost frame. */
INLINE u64 saved_word(const struct walk *walk, u64 cfa, u32 place, short words, u64 same)
{
    const struct scratch *scratch = walk->scratch;
    u64 word = 0;
    if (place == PLACE_SAME)
        return same;
    if (place == PLACE_LOST)
        return 1;
    if (place == PLACE_CFA && words < 0 && words >= -SAVED_WORDS)
        return window_word(&scratch->stack, cfa + words * 8);
    u64 base = place == PLACE_CFA ? cfa : walk->fp;
    bpf_probe_read_user(&word, sizeof(word), (void *)(base + words * 8));
    return word;
}

/* Returns the link register of the innermost frame; 0 for other frames, and on machines without one. */
INLINE u64 link_register(const struct walk *walk)
{
#ifdef LINK_NUMBER
    return walk->scratch->has_registers ? walk->scratch->registers[LINK_NUMBER] : 0;
#else
    return 0;
#endif
}

INLINE long step_by_rule(struct walk *walk, const struct rule *rule)
{
    struct scratch *scratch = walk->scratch;
    u64 cfa;
    if (cfa_of(walk, rule, &cfa) || cfa & 7 || cfa >= USER_ADDRESS_LIMIT)
        return stop(walk, USER_END_BROKEN);
    if (!read_window(&scratch->stack, cfa - SAVED_WORDS * 8, SAVED_WORDS * 8, WINDOW_ABOVE))
        return stop(walk, USER_END_BROKEN);
    u64 return_address = rule->ra ? saved_word(walk, cfa, PLACE_CFA, rule->ra, 0) : link_register(walk);
    u64 fp = saved_word(walk, cfa, rule->saved & 3, rule->fp, walk->fp);
    walk->bx = saved_word(walk, cfa, rule->saved >> 2 & 3, rule->bx, walk->bx);
    walk->fp = fp;
    scratch->has_no_caller = !return_address;
    return go_on(walk, return_address, cfa);
}

/* Steps through code that nothing describes: a signal trampoline, or code that may keep frame pointers. */
INLINE long step_without_rule(struct walk *walk)
{
    u64 code;
    if (!bpf_probe_read_user(&code, sizeof(code), (void *)walk->pc) && is_sigreturn(code))
        return step_over_signal(walk);
    return step_by_frame_pointer(walk);
}

/* Steps over code that Ruby or PCRE2 has compiled. Returns -1 if it is no such code. */
INLINE long step_over_compiled(struct walk *walk)
{
    struct compiled_frame frame = { .sp = walk->sp, .fp = walk->fp, .bx = walk->bx };
    if (!find_compiled_caller(walk->scratch, &frame, walk->mm))
        return -1;
    walk->fp = frame.fp;
    walk->bx = frame.bx;
    return go_on(walk, frame.pc, frame.sp);
}

/* Steps from code that has no table: code that a program has compiled, or code that may keep frame pointers. PHP keeps
 * its compiled code in memory that its processes share, which has a file. */
INLINE long step_without_table(struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    if (!scratch->mapped.has_file) {
        long step = step_over_compiled(walk);
        return step < 0 ? step_by_frame_pointer(walk) : step;
    }
    int words = find_php_loop(scratch, walk->mm, walk->sp);
    if (!words)
        return step_by_frame_pointer(walk);
    walk->sp += (words - 1) * sizeof(u64);
    walk->pc = scratch->php_loop;
    scratch->is_exact = 1;
    return 0;
}

/* Steps from an address that is not in executable memory. Ruby's compiler makes all its code writable, and so not
 * executable, while it adds code. Only an address after a call counts. It is not recorded, because user space could not
 * tell it from the result of a wrong step. */
INLINE long step_without_mapping(struct walk *walk)
{
    int is_called = follows_call(walk->pc) || follows_call_of_ruby(walk->scratch, walk->mm, walk->pc);
    long step = is_called ? step_over_compiled(walk) : -1;
    return step < 0 ? stop(walk, end_at(walk->mm, walk->sp)) : step;
}

/* Steps from Go's runtime, while it makes a stack larger, to the goroutine of that stack. The goroutine's function has
 * not set up its frame yet, so its stack pointer is enough to find its caller. */
INLINE long step_to_goroutine(struct walk *walk)
{
    struct go_position position;
    if (!read_growing(&position, bpf_get_current_task_btf(), walk->scratch->mapped.go))
        return stop(walk, USER_END_ROOT);
    walk->fp = 0;
    walk->bx = 0;
    return go_on(walk, position.pc, position.sp);
}

/* Steps over a frame in code that V8 made at run time. `step` is what step_in_v8() returned. */
INLINE long step_over_v8(struct walk *walk, int step)
{
    struct scratch *scratch = walk->scratch;
    u64 sp = walk->sp;
    if (step == V8_FRAME)
        return step_by_frame_pointer(walk);
    if (!read_window(&scratch->stack, sp, 16, WINDOW_ABOVE))
        return stop(walk, USER_END_BROKEN);
    if (step == V8_CALLED)
        return go_on(walk, window_word(&scratch->stack, sp), sp + 8);
    walk->fp = window_word(&scratch->stack, sp);
    return go_on(walk, window_word(&scratch->stack, sp + 8), sp + 16);
}

#ifdef TARGET_X86_64
/* Returns 1 if an address is in the code that HotSpot has made. */
INLINE int is_in_hotspot(const struct scratch *scratch, u64 address)
{
    return scratch->hotspot.state == HOTSPOT_FOUND && is_in_code(scratch, address);
}

/* Records one frame of HotSpot's code, and replaces the registers in scratch->hotspot by those of its caller. Returns 0
 * if there is none. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int step_in_hotspot(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    return scratch->is_exact ? step_in_leaf(scratch) : step_in_code(scratch);
}

/* Records one frame of HotSpot's code, and continues in its caller. */
INLINE long step_through_hotspot(struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    struct hotspot *hotspot = &scratch->hotspot;
    hotspot->pc = walk->pc;
    hotspot->sp = walk->sp;
    hotspot->fp = walk->fp;
    hotspot->bx = walk->bx;
    if (scratch->user_frames >= USER_FRAMES_MAX)
        return stop(walk, USER_END_TRUNCATED);
    if (!step_in_hotspot(scratch))
        return stop(walk, USER_END_BROKEN);
    walk->fp = hotspot->fp;
    walk->bx = hotspot->bx;
    return go_on(walk, hotspot->pc, hotspot->sp);
}
#else
INLINE int find_hotspot(struct scratch *scratch) { return 0; }
INLINE int is_in_hotspot(const struct scratch *scratch, u64 address) { return 0; }
INLINE long step_through_hotspot(struct walk *walk) { return stop(walk, USER_END_BROKEN); }
#endif
