/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The user stack, one bpf_loop() iteration a frame: by the rules of the file's unwind table, and where a mapping has none, by frame
 * pointers.
 *
 * Stacks grow down, so a caller's stack is above, except where a program changes stacks (a signal on its own stack, Go's system
 * stack). Such steps back are allowed a few times; an endless chain would need endlessly many.
 */
#pragma once

#include "record.h"
#include "registers.h"
#include "mapped.h"

#define STEPS_BACK_MAX 16
/* User addresses end below this on every supported machine, with five page table levels too. */
#define USER_ADDRESS_LIMIT (1ull << 56)
/* Words below the CFA in which nearly all functions keep what they save. */
#define SAVED_WORDS 8
/* Words of the stack that are read at once: those, and what callers have saved, which is further up. */
#define WINDOW_WORDS 32
/* Where no stack is. */
#define NO_WINDOW (1ull << 63)

struct scratch {
    struct sample_header header;
    u64 frames[KERNEL_FRAMES_MAX + USER_FRAMES_MAX + LABELS_MAX * sizeof(struct label) / sizeof(u64)]; /* labels behind them */
    /* Of the innermost frame, and of the one that a signal struck; by DWARF's numbers. */
    u64 registers[REGISTERS];
    /* Words of the stack that were read, and where they are from. */
    u64 window_start;
    u64 window_words;
    u64 window[WINDOW_WORDS];
    struct mapped mapped;
    struct rule rule; /* of the frame at hand */
    /* Of the walk, but not in it: there the verifier would look at each of their values. */
    u64 go; /* of the Go program that was met last */
    u32 steps_back;
    u32 end;      /* enum user_end */
    u32 is_exact; /* pc is no return address */
    u32 has_registers; /* `registers` are this frame's */
};

#include "goroutine.h"

struct walk {
    struct scratch *scratch;
    u64 mm;
    u64 pc, sp, fp, bx;
};

/* Appends one frame; says no when the user part is full. */
INLINE int push_frame(struct scratch *scratch, u64 frame)
{
    u32 user_frames = scratch->header.user_frames;
    u32 at = scratch->header.kernel_frames + user_frames;
    if (user_frames >= USER_FRAMES_MAX || at >= KERNEL_FRAMES_MAX + USER_FRAMES_MAX)
        return 0;
    scratch->frames[at] = frame;
    scratch->header.user_frames = user_frames + 1;
    return 1;
}

/* A frame as it is sent. */
INLINE u64 frame_of(const struct mapped *mapped, u64 address)
{
    if (!mapped->number)
        return address;
    return FRAME_IN_FILE | (u64)mapped->number << FRAME_OFFSET_BITS |
           ((address + mapped->to_offset) & ((1ull << FRAME_OFFSET_BITS) - 1));
}

INLINE long stop(struct walk *walk, u32 end)
{
    walk->scratch->end = end;
    return 1;
}

/* Goes on in the caller, if its registers can be. */
INLINE long go_on(struct walk *walk, u64 return_address, u64 sp)
{
    struct scratch *scratch = walk->scratch;
    if (return_address == 0 || return_address >= USER_ADDRESS_LIMIT || sp >= USER_ADDRESS_LIMIT || sp & 7)
        return stop(walk, USER_END_BROKEN);
    if (sp <= walk->sp && ++scratch->steps_back > STEPS_BACK_MAX)
        return stop(walk, USER_END_BROKEN);
    walk->pc = return_address;
    walk->sp = sp;
    scratch->is_exact = 0;
    scratch->has_registers = 0;
    return 0;
}

/* The code that a signal handler returns to stands where the kernel left the registers of what the signal struck. */
INLINE long step_over_signal(struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    struct registers registers;
    /* No call came from there, and often it begins where the address in front of it is another function's. */
    u32 at = scratch->header.kernel_frames + scratch->header.user_frames - 1;
    if (!scratch->is_exact && at < KERNEL_FRAMES_MAX + USER_FRAMES_MAX)
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
 * A frame is | caller's frame pointer | return address |, and the outermost one's frame pointer is 0. A function that has not
 * made its frame yet hides its caller, which nothing here can tell.
 */
INLINE long step_by_frame_pointer(struct walk *walk)
{
    u64 words[2];
    u64 fp = walk->fp;
    if (fp == 0)
        return stop(walk, USER_END_ROOT);
    if (fp & 7 || fp >= USER_ADDRESS_LIMIT || bpf_probe_read_user(words, sizeof(words), (void *)fp))
        return stop(walk, USER_END_BROKEN);
    walk->fp = words[0];
    walk->scratch->header.fp_frames += 1;
    return go_on(walk, words[1], fp + sizeof(words));
}

/* The register that a rule's CFA is found by; 0 if it is not known here. */
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

INLINE long cfa_of(const struct walk *walk, const struct rule *rule, u64 *cfa)
{
    if (rule->kind == RULE_LINKAGE_TABLE) {
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

/* Reads the words below a CFA, if they are not there from a callee; says no if they cannot be read. */
INLINE int read_saved(struct scratch *scratch, u64 cfa)
{
    u64 start = cfa - SAVED_WORDS * 8;
    if (start - scratch->window_start <= (scratch->window_words - SAVED_WORDS) * 8)
        return 1;
    scratch->window_start = start;
    scratch->window_words = WINDOW_WORDS;
    if (!bpf_probe_read_user(scratch->window, sizeof(scratch->window), (void *)start))
        return 1;
    /* The stack may end before. */
    scratch->window_words = SAVED_WORDS;
    return !bpf_probe_read_user(scratch->window, SAVED_WORDS * 8, (void *)start);
}

/* A word that a function has saved; 0 if it cannot be read, and no place at all if nothing knows where it is: 0 would be an outermost frame's. */
INLINE u64 saved_word(const struct walk *walk, u64 cfa, u32 place, short words, u64 same)
{
    const struct scratch *scratch = walk->scratch;
    u64 word = 0;
    if (place == PLACE_SAME)
        return same;
    if (place == PLACE_LOST)
        return 1;
    if (place == PLACE_CFA && words < 0 && words >= -SAVED_WORDS)
        return scratch->window[((cfa - scratch->window_start) / 8 + words) % WINDOW_WORDS];
    u64 base = place == PLACE_CFA ? cfa : walk->fp;
    bpf_probe_read_user(&word, sizeof(word), (void *)(base + words * 8));
    return word;
}

/* Of the innermost frame alone, and only where a machine has one. */
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
    if (!read_saved(scratch, cfa))
        return stop(walk, USER_END_BROKEN);
    u64 return_address = rule->ra ? saved_word(walk, cfa, PLACE_CFA, rule->ra, 0) : link_register(walk);
    u64 fp = saved_word(walk, cfa, rule->saved & 3, rule->fp, walk->fp);
    walk->bx = saved_word(walk, cfa, rule->saved >> 2 & 3, rule->bx, walk->bx);
    walk->fp = fp;
    return go_on(walk, return_address, cfa);
}

/* Code that nothing describes: what a signal handler returns to, or, it may be, what keeps frame pointers. */
INLINE long step_without_rule(struct walk *walk)
{
    u64 code;
    if (!bpf_probe_read_user(&code, sizeof(code), (void *)walk->pc) && is_sigreturn(code))
        return step_over_signal(walk);
    return step_by_frame_pointer(walk);
}

/* The runtime of Go makes a larger stack, and is called by a function that has not touched its own yet: all registers are its caller's. */
INLINE long step_to_goroutine(struct walk *walk)
{
    struct go_place place;
    if (!read_growing(&place, bpf_get_current_task_btf(), walk->scratch->mapped.go))
        return stop(walk, USER_END_ROOT);
    walk->fp = 0;
    walk->bx = 0;
    return go_on(walk, place.pc, place.sp);
}

/* Reads the rule of an address as the file numbers it into the scratch; says whether it has one. */
INLINE int find(struct scratch *scratch, u64 address)
{
    const struct mapped *mapped = &scratch->mapped;
    const struct table_layout *layout = &mapped->layout;
    u64 page = (address >> 12) - layout->first_page;
    if (page >= layout->pages)
        return 0;
    u32 page_at = page * sizeof(struct table_page);
    u32 at = find_rule(mapped->table, page_at, layout->rules_at, layout->rows_at, address & 0xfff);
    struct rule *rule = at ? rule_at(mapped->table, at) : 0;
    if (!rule)
        return 0;
    scratch->rule = *rule;
    return 1;
}

/* The same, and remembers it. */
INLINE int find_or_recall(struct scratch *scratch, u64 frame, u64 address)
{
    struct known_rule *known = known_rule_at(frame);
    if (known && known->frame == frame && known->age == scratch->mapped.age) {
        scratch->rule = known->rule;
        return 1;
    }
    if (!find(scratch, address))
        return 0;
    if (known) {
        known->rule = scratch->rule;
        known->frame = frame;
        known->age = scratch->mapped.age;
    }
    return 1;
}

/* One frame; returns 1 at the end of the stack, with the reason in scratch->end. */
static long unwind_step(u32 index, struct walk *walk)
{
    struct scratch *scratch = walk->scratch;
    struct mapped *mapped = &scratch->mapped;
    u64 pc = walk->pc - (scratch->is_exact ? 0 : 1);
    if (!map_address(mapped, walk->mm, pc, scratch->header.pid)) {
        /* No frame: what led here was wrong. The innermost one ran, all the same. */
        if (index == 0)
            push_frame(scratch, pc);
        return stop(walk, USER_END_BROKEN);
    }
    if (mapped->go)
        scratch->go = mapped->go;
    u64 frame = frame_of(mapped, pc);
    if (!push_frame(scratch, frame))
        return stop(walk, USER_END_TRUNCATED);
    if (mapped->table == NO_TABLE)
        return step_by_frame_pointer(walk);
    struct rule *rule = &scratch->rule;
    if (!find_or_recall(scratch, frame, pc + mapped->to_address) || rule->kind == RULE_UNKNOWN)
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

/* Fills in the user part of the sample from the registers with which the thread left, or leaves, user mode. */
INLINE void unwind_user(struct scratch *scratch, struct task_struct *task, u64 mm, const struct registers *registers, int in_syscall)
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
    scratch->window_start = NO_WINDOW;
    scratch->window_words = SAVED_WORDS;
    scratch->go = 0;
    scratch->steps_back = 0;
    scratch->end = USER_END_TRUNCATED;
    scratch->is_exact = !in_syscall;
    scratch->has_registers = 1;
    bpf_loop(USER_FRAMES_MAX + 1, unwind_step, &walk, 0);
    scratch->header.user_end = scratch->end;
    if (scratch->go)
        read_go_labels(scratch, task, scratch->go);
}
