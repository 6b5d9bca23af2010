/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks the contexts of Perl 5.26 and later, built with threads.
 *
 * An interpreter has a stack of contexts: of subs, evals, blocks and loops. C code that calls a sub, such as `sort` or
 * a destructor, begins a new level of this stack, and most of these levels run in a loop of their own. The first sub or
 * eval of such a loop returns to no operation, which marks it. The outermost loop is in perl_run(), which counts as a
 * part of it. After an exception, the stack has no other frame of the loop for some instructions.
 *
 * A context has the statement (COP) of its caller, so the statement of the innermost context is that of the
 * interpreter. Blocks do not have a statement of their own: they are part of their sub.
 */
#pragma once

#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Indices of offsets[], all in bytes. */
enum perl_offset {
    PERL_STATEMENT = 0,     /* in an interpreter: its statement */
    PERL_LEVEL = 1,         /* in an interpreter: the innermost level of the stack of contexts */
    PERL_LEVEL_CONTEXT = 2, /* in a level: index of its innermost context, or of its innermost sub or eval */
    PERL_LEVEL_TYPE = 3,    /* in a level: its type */
    PERL_CONTEXT_BYTES = 4, /* size of a context */
    PERL_CONTEXT_CV = 5,    /* in the context of a sub: the sub */
    PERL_CONTEXT_OUTER = 6, /* in a context: index of the next outer sub or eval; 0: contexts do not have it */
};

/* Fields at the same offsets in all versions: in an interpreter, in a level, in a context, in a statement, and in the
 * body of a sub. */
#define PERL_OPERATION 8
#define LEVEL_CONTEXTS 8
#define LEVEL_OUTER 0x10
#define LEVEL_INDEX_MAX 0x24
#define LEVEL_BYTES 0x30
#define CONTEXT_STATEMENT 0x10
#define CONTEXT_RETURN 0x30
#define CONTEXT_COPY 0x50
#define STATEMENT_LINE 0x20
#define SUB_FIELDS 0x20

#define LEVEL_MAIN 1
#define CONTEXT_KIND 0x0f
#define CONTEXT_SUB 9
#define CONTEXT_FORMAT 10
#define CONTEXT_EVAL 11
/* Flags of a sub: C code calls it many times; a regex runs it; a regex runs a part of the sub outside of it. */
#define SUB_MULTICALL 0x10
#define SUB_IN_REGEX 0x40
#define SUB_FAKE 0x80
/* Flag of an eval: it has a block, not a text. */
#define EVAL_BLOCK 0x40

/* Tags in the lower bits of an address. That of a sub is 0. Others have the address of a file's name. */
#define PERL_PROGRAM_TAG 1
#define PERL_EVAL_TAG 2
/* A line that is not known: the first line of the sub takes its place. */
#define PERL_NO_LINE 0

/*
 * State of a walk: `frame` has the index of the next context plus 2 in its lower half, and these flags. It is 1 if the
 * level has no further context. `more` has the level, the statement of the next context, and the contexts of the level.
 */
#define PERL_WALK_LEVEL 0
#define PERL_WALK_STATEMENT 1
#define PERL_WALK_CONTEXTS 2
#define PERL_NO_CONTEXT 1
#define PERL_IS_INNERMOST (1ull << 32) /* nothing is recorded yet */
#define PERL_IS_IDLE (1ull << 33)      /* no operation runs */

/* A statement, from STATEMENT_LINE on. */
struct perl_statement {
    u32 before;
    u32 line;
    u64 package;
    u64 file;
};

/* Gives up the walk. Returns 1. */
INLINE int perl_is_lost(struct scratch *scratch, struct runtime_walk *walk)
{
    walk->frame = 0;
    push_missing_functions(scratch);
    return 1;
}

/* Goes on with the innermost context of a level. Returns 0 on success. */
INLINE long enter_perl_level(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk,
                             u64 level)
{
    if (copy_object(scratch, level, LEVEL_BYTES))
        return 1;
    int index = object_int(scratch, runtime->offsets[PERL_LEVEL_CONTEXT]);
    if (index < -1 || index > (int)object_int(scratch, LEVEL_INDEX_MAX))
        return 1;
    walk->more[PERL_WALK_LEVEL] = level;
    walk->more[PERL_WALK_CONTEXTS] = object_word(scratch, LEVEL_CONTEXTS);
    walk->frame = (walk->frame & ~0xffffffffull) | (u32)(index + 2);
    return 0;
}

/* Begins a walk. Its frame is 0 if the thread runs no interpreter. */
INLINE void begin_perl(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    u64 interpreter, operation, level;
    walk->frame = 0;
    if (read_thread_pointer(&interpreter, &runtime->threads[0], scratch->mapped.to_address) || !interpreter ||
        bpf_probe_read_user(&operation, sizeof(operation), (void *)(interpreter + PERL_OPERATION)) ||
        bpf_probe_read_user(&level, sizeof(level), (void *)(interpreter + runtime->offsets[PERL_LEVEL])) ||
        bpf_probe_read_user(&walk->more[PERL_WALK_STATEMENT], sizeof(u64),
                            (void *)(interpreter + runtime->offsets[PERL_STATEMENT])) ||
        enter_perl_level(scratch, runtime, walk, level))
        return;
    walk->frame |= PERL_IS_INNERMOST | (operation ? 0 : PERL_IS_IDLE);
}

/* Returns the identity of a sub as one number; 0 if it cannot be read. The name of a sub is not part of it, because it
 * may move while the sub runs. */
INLINE u32 perl_identity(struct scratch *scratch, u64 cv)
{
    u64 body, identity = 0;
    if (!cv || cv & 7 || bpf_probe_read_user(&body, sizeof(body), (void *)cv) ||
        bpf_probe_read_user(scratch->identity, 8 * sizeof(u64), (void *)(body + SUB_FIELDS)))
        return 0;
    /* The number of the sub in the parser. */
    scratch->identity[3] = (u32)scratch->identity[7];
    for (int i = 0; i < 5; i++)
        identity = (identity ^ scratch->identity[i]) * HASH_FACTOR;
    return identity >> 32 | 1;
}

/* Returns the bytes of a word until the first that is 0. */
INLINE u64 until_zero(u64 word)
{
    u64 zeros = (word - 0x0101010101010101) & ~word & 0x8080808080808080;
    return zeros ? word & (((zeros & -zeros) >> 7) - 1) : word;
}

/* Records the main program, or the text of an eval. Returns 0 if the user part is full. */
INLINE int push_perl_unit(struct scratch *scratch, u64 at, u32 tag)
{
    struct perl_statement statement;
    u64 name[2], identity;
    if (bpf_probe_read_user(&statement, sizeof(statement), (void *)(at + STATEMENT_LINE)) || statement.file & 7 ||
        bpf_probe_read_user(name, sizeof(name), (void *)statement.file))
        return push_missing_functions(scratch);
    identity = until_zero(name[0]) * HASH_FACTOR;
    /* All of the first word are part of the name if it has no zero. */
    if (until_zero(name[0]) == name[0] && name[0] >> 56)
        identity = (identity ^ until_zero(name[1])) * HASH_FACTOR;
    return push_runtime_frame(scratch, statement.file | tag, statement.line, identity >> 32 | 1);
}

/* Returns 1 if the context with an index is that of the sub `cv`. */
INLINE int is_perl_sub(const struct runtime *runtime, u64 contexts, u32 index, u64 cv)
{
    u64 other;
    if ((int)index < 0)
        return 0;
    u64 at = contexts + (u64)index * runtime->offsets[PERL_CONTEXT_BYTES] + runtime->offsets[PERL_CONTEXT_CV];
    return !bpf_probe_read_user(&other, sizeof(other), (void *)at) && other == cv;
}

/* Records the context walk->frame, if it is that of a function, and goes on to the next outer one. Returns 1 after the
 * last function of the loop. */
INLINE int step_in_perl(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    u64 state = walk->frame, statement = walk->more[PERL_WALK_STATEMENT], contexts = walk->more[PERL_WALK_CONTEXTS];
    u32 index = (u32)state - 2;
    if (!state)
        return 1;
    if ((u32)state == PERL_NO_CONTEXT) {
        if (copy_object(scratch, walk->more[PERL_WALK_LEVEL], LEVEL_BYTES))
            return perl_is_lost(scratch, walk);
        u64 outer = object_word(scratch, LEVEL_OUTER);
        if (object_int(scratch, runtime->offsets[PERL_LEVEL_TYPE]) != LEVEL_MAIN && outer)
            return enter_perl_level(scratch, runtime, walk, outer) && perl_is_lost(scratch, walk);
        walk->frame = 0;
        push_perl_unit(scratch, statement, PERL_PROGRAM_TAG);
        return 1;
    }
    struct window *frames = &scratch->runtime_frames;
    u64 context = contexts + (u64)index * runtime->offsets[PERL_CONTEXT_BYTES];
    if (!read_window(frames, context, CONTEXT_COPY, WINDOW_BELOW))
        return perl_is_lost(scratch, walk);
    u16 outer_at = runtime->offsets[PERL_CONTEXT_OUTER];
    u32 next = outer_at ? window_int(frames, context + outer_at) : index - 1;
    if ((int)next < -1 || (int)next >= (int)index)
        return perl_is_lost(scratch, walk);
    walk->frame = (state & ~0xffffffffull) | (u32)(next + 2);
    u8 type = window_byte(frames, context), kind = type & CONTEXT_KIND;
    int is_last = !window_word(frames, context + CONTEXT_RETURN);
    int is_sub = kind == CONTEXT_SUB || kind == CONTEXT_FORMAT;
    if (!is_sub && kind != CONTEXT_EVAL)
        return 0;
    /* The part of a sub that a regex runs, and the block of an eval, belong to the sub. */
    if (kind == CONTEXT_SUB ? type & SUB_FAKE : type & EVAL_BLOCK && kind == CONTEXT_EVAL)
        return 0;
    walk->more[PERL_WALK_STATEMENT] = window_word(frames, context + CONTEXT_STATEMENT);
    walk->frame = (u32)walk->frame;
    if (kind == CONTEXT_EVAL)
        return !push_perl_unit(scratch, statement, PERL_EVAL_TAG) || is_last;
    u64 cv = window_word(frames, context + runtime->offsets[PERL_CONTEXT_CV]);
    struct last_function *last = &scratch->last;
    struct perl_statement at;
    /* Before its first statement, a sub has that of its caller. Its loop has not begun then. */
    int is_new = state & PERL_IS_INNERMOST && statement == walk->more[PERL_WALK_STATEMENT] &&
                 !is_perl_sub(runtime, contexts, next, cv);
    if (is_new || bpf_probe_read_user(&at, sizeof(at), (void *)(statement + STATEMENT_LINE)))
        at.line = PERL_NO_LINE;
    /* A regex runs the operations of a sub, of which a called one ends the loop. C code that calls a sub many times has
     * not begun its loop if no operation runs. */
    if (is_new || (kind == CONTEXT_SUB && (type & SUB_IN_REGEX || (type & SUB_MULTICALL && state & PERL_IS_IDLE))))
        is_last = 0;
    /* While the interpreter leaves a sub, its context has none. */
    if (!cv)
        return is_last;
    if (cv != last->object) {
        last->object = cv;
        last->identity = perl_identity(scratch, cv);
    }
    return !push_runtime_frame(scratch, cv, at.line, last->identity) || is_last;
}
