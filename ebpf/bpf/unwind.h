/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The walk of the user stack, one bpf_loop() iteration per frame (step.h). Functions of language runtimes are recorded
 * between the native frames.
 */
#pragma once

#include "mappings/mapped.h"
#include "record.h"
#include "registers.h"
#include "runtimes/goroutine.h"
#include "runtimes/loops.h"
#include "runtimes/php_jit.h"
#include "runtimes/v8.h"
#include "scratch.h"
#include "step.h"
#include "types.h"

/* Returns the frame for an address, encoded as in record.h. */
INLINE u64 frame_of(const struct mapped *mapped, u64 address)
{
    if (!mapped->number)
        return address;
    return FRAME_IN_FILE | (u64)mapped->number << FRAME_OFFSET_BITS |
           ((address + mapped->to_offset) & ((1ull << FRAME_OFFSET_BITS) - 1));
}

/* Records one frame and steps to its caller. Returns 1 at the end of the stack, with the reason in scratch->end. */
static long unwind_step(u32 index, struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    struct mapped *mapped = &scratch->mapped;
    u64 pc = walk->pc - (scratch->is_exact ? 0 : 1);
    if (scratch->runtime)
        return step_in_runtime(scratch) ? stop(walk, USER_END_TRUNCATED) : 0;
    if (is_in_hotspot(scratch, pc))
        return step_through_hotspot(walk);
    if (!map_address(mapped, walk->mm, pc, scratch->header.pid)) {
        if (index)
            return step_without_mapping(walk);
        /* The innermost frame is real in any case. */
        push_frame(scratch, pc);
        return stop(walk, end_at(walk->mm, walk->sp));
    }
    /* Only code without a table can be that of HotSpot. */
    if (mapped->table == NO_TABLE && scratch->hotspot.state == HOTSPOT_UNKNOWN && find_hotspot(scratch) &&
        is_in_hotspot(scratch, pc))
        return step_through_hotspot(walk);
    if (mapped->go)
        scratch->go = mapped->go;
    if (mapped->runtime && !scratch->is_loop_passed && enter_runtime(scratch, pc + mapped->to_address))
        return 0;
    scratch->is_loop_passed = 0;
    u64 frame = frame_of(mapped, pc);
    struct rule *rule = &scratch->rule;
    rule->kind = RULE_UNKNOWN;
    if (mapped->table != NO_TABLE && !load_cached_rule(mapped, rule, frame, pc + mapped->to_address))
        rule->kind = RULE_UNKNOWN;
    if (mapped->runtime || !mapped->number) {
        int step = step_in_v8(scratch, walk->mm, pc, walk->sp, walk->fp);
        if (step != V8_NOTHING)
            return step_over_v8(walk, step);
    }
    if (!push_frame(scratch, frame))
        return stop(walk, USER_END_TRUNCATED);
    if (mapped->table == NO_TABLE)
        return step_without_table(walk);
    if (rule->kind == RULE_UNKNOWN)
        return step_without_rule(walk);
    if (rule->kind == RULE_INVALID)
        return stop(walk, USER_END_BROKEN);
    if (rule->kind == RULE_ROOT)
        return stop(walk, USER_END_ROOT);
    if (rule->kind == RULE_SIGNAL)
        return step_over_signal(walk);
    if (rule->kind == RULE_GROWS)
        return step_to_goroutine(walk);
    return step_by_rule(walk, rule);
}

/*
 * Records one of the functions that are left when the native frames end. Returns 1 if none is left.
 *
 * The native frames may end early: in code without a table, or at the first frame of a coroutine. C code may also call
 * a function whose loop has not begun yet, so that the functions are one loop late. They keep their order here.
 */
static long drain_step(u32 index, struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    for (u32 i = 0; i < RUNTIME_WALKS && !scratch->runtime; i++) {
        const struct runtime_walk *left = &scratch->runtime_walks[i];
        if (left->id && left->frame) {
            scratch->runtime = left->id;
            scratch->runtime_walk = i;
        }
    }
    if (!scratch->runtime)
        return 1;
    return step_in_runtime(scratch) ? stop(walk, USER_END_TRUNCATED) : 0;
}

/* Walks the user part of the sample, from the registers with which the thread left user mode. */
INLINE void unwind_user(struct scratch *scratch, struct task_struct *task, u64 mm, const struct registers *registers,
                        int in_syscall)
{
    struct walk walk = {
        .scratch = scratch,
        .mm = mm,
        .pc = PC(registers),
        .sp = SP(registers),
        .fp = FP(registers),
        .bx = BX(registers),
    };
    if (IS_COMPAT(registers)) {
        push_frame(scratch, walk.pc);
        scratch->header.user_end = USER_END_COMPAT;
        return;
    }
    number_registers(registers, scratch->registers);
    scratch->mapped.end = 0;
    scratch->stack.bytes = scratch->runtime_frames.bytes = scratch->runtime_values.bytes = 0;
    scratch->last.object = 0;
    scratch->last.identity = 0;
    scratch->go = 0;
    scratch->runtime = 0;
    for (int i = 0; i < RUNTIME_WALKS; i++)
        scratch->runtime_walks[i].id = 0;
    scratch->php_compiled = scratch->compiled = 0;
    scratch->is_loop_passed = 0;
    scratch->is_v8_known = 0;
    scratch->hotspot.state = HOTSPOT_UNKNOWN;
    scratch->user_frames = 0;
    scratch->ruby_methods = 0;
    scratch->has_no_caller = 0;
    scratch->steps_back = 0;
    scratch->end = USER_END_TRUNCATED;
    scratch->is_exact = !in_syscall;
    scratch->has_registers = 1;
    /* The first frame of a loop takes one step more, and a step in a runtime may record nothing. */
    bpf_loop(4 * USER_FRAMES_MAX, unwind_step, &walk, 0);
    if (scratch->end != USER_END_TRUNCATED) {
        u32 frames = scratch->user_frames, words = scratch->header.user_words, methods = scratch->ruby_methods;
        int has_no_loop = scratch->end == USER_END_BROKEN && scratch->has_no_caller && begin_ruby_at_end(scratch);
        begin_php_at_end(scratch, mm);
        bpf_loop(4 * USER_FRAMES_MAX, drain_step, &walk, 0);
        /* The first frames of a fiber of Ruby may be of methods that are written in C. */
        int has_functions = scratch->user_frames - frames != scratch->ruby_methods - methods;
        /* While Ruby changes from one fiber to another, they can be those of the other one. */
        if (has_no_loop) {
            scratch->user_frames = frames;
            scratch->header.user_words = words;
            scratch->end = USER_END_BROKEN;
        }
        /* The first frame of a coroutine has no caller. After a wrong step, the word may be 0, too, but then the
         * runtime often has functions that were not recorded. */
        if (scratch->end == USER_END_BROKEN && scratch->has_no_caller && scratch->runtime_walks[0].id && !has_functions)
            scratch->end = USER_END_ROOT;
    }
    scratch->header.user_end = scratch->end;
    if (scratch->go)
        read_go_labels(scratch, task, scratch->go);
}
