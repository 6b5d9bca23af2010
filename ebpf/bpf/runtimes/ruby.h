/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks the control frames of Ruby (MRI) 2.5 and later.
 *
 * The control frames of a thread or fiber are an array, of which the outermost has the highest address. Each call of
 * rb_vm_exec() runs the frames down to the first one with the flag FINISH. Methods that are written in C have control
 * frames too, without instructions.
 *
 * The instructions of a function are an object (iseq) that the garbage collector may move. Its body is not moved, so
 * the body stands for the function. The method entry stands for a method that is written in C. Its name is found by
 * Ruby's table of symbols, so the frame also has the address at which the file with Ruby is loaded.
 */
#pragma once

#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Indices of offsets[], in bytes. */
enum ruby_offset {
    RUBY_FRAME_BYTES = 0, /* size of a control frame */
    RUBY_JIT_RETURN = 1,  /* in a control frame: where compiled code goes on; 0: there is none */
    RUBY_THREAD = 2,      /* in an execution context: its thread; 0: each thread has its own context */
    RUBY_THREAD_ID = 3,   /* in a thread: what pthread_self() returns in it */
};

/* Fields at the same offsets in all versions: in a control frame, in an iseq, and in its body. */
#define RUBY_PC 0
#define RUBY_ISEQ 16
#define RUBY_ENVIRONMENT 32
#define RUBY_BODY 16
#define RUBY_SIZE 4 /* number of words of the instructions, 32 bits */
#define RUBY_INSTRUCTIONS 8
#define RUBY_LOCATION 64
#define RUBY_BODY_BYTES 96

/* Flags of an environment: the frame is the first of its loop; it has no instructions. */
#define RUBY_FINISH 0x20
#define RUBY_C_FRAME 0x80
/* The type of the frame, among these flags: that of a method that is written in C. */
#define RUBY_TYPE 0x7fff0001
#define RUBY_C_METHOD 0x55550001
/* From the flags to the method entry, which precedes them. */
#define RUBY_METHOD 16
/* Words of a method entry: flags, class, definition, name, owner. */
#define RUBY_METHOD_WORDS 5

/* The address in a frame of a method in C: this bit, the address of the entry, and bits 44 to 46 of the address at
 * which the file is loaded. The position in the frame is bits 12 to 43 of that address. */
#define RUBY_METHOD_FRAME (1ull << 47)

/* Words of the function that was recorded last. Its form is the number of words of its instructions. */
#define RUBY_LAST_BODY 0
#define RUBY_LAST_FIRST 1

/* Words of a walk: the end of the control frames, and the address at which the file with Ruby is loaded. */
#define RUBY_WALK_END 0
#define RUBY_WALK_BASE 1

/* A position that is not known. */
#define RUBY_NO_POSITION 0xffffffff

/* The start of an execution context. */
struct ruby_context {
    u64 stack;
    u64 words;
    u64 frame;
};

/* Reads the execution context of the running thread. Returns 0 on success. */
INLINE long read_ruby_context(u64 *context, const struct runtime *runtime, u64 to_address)
{
    u64 thread, id, base;
    if (read_thread_pointer(context, &runtime->threads[0], to_address) || !*context)
        return 1;
    if (!runtime->offsets[RUBY_THREAD])
        return 0;
    /* The context is that of the thread that holds the lock. */
    return bpf_probe_read_user(&thread, sizeof(thread), (void *)(*context + runtime->offsets[RUBY_THREAD])) ||
           bpf_probe_read_user(&id, sizeof(id), (void *)(thread + runtime->offsets[RUBY_THREAD_ID])) ||
           read_thread_base(&base) || id != base;
}

/* Begins a walk. Its frame is 0 if the thread runs no Ruby code. Returns 1 if the control frames could be found. */
INLINE int begin_ruby(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    struct ruby_context context;
    u64 address, bytes = runtime->offsets[RUBY_FRAME_BYTES];
    if (read_ruby_context(&address, runtime, scratch->mapped.to_address) ||
        bpf_probe_read_user(&context, sizeof(context), (void *)address))
        return 0;
    /* The outermost frame belongs to no function. */
    u64 end = context.stack + context.words * sizeof(u64) - bytes;
    if (context.frame & 7 || context.frame < context.stack || context.frame > end)
        return 0;
    walk->frame = context.frame < end ? context.frame : 0;
    walk->more[RUBY_WALK_END] = end;
    walk->more[RUBY_WALK_BASE] = -scratch->mapped.to_address;
    return 1;
}

/* Begins a walk after the native frames, if the last of them is in a file with Ruby and no loop was on the stack. A new
 * fiber runs C code before its first loop, and its context has no functions then. Returns 1 if the walk began. Not
 * inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int begin_ruby_at_end(struct scratch *scratch)
{
    if (!scratch || scratch->runtime_walks[0].id)
        return 0;
    struct runtime *runtime = find_runtime(scratch->mapped.runtime);
    if (!runtime || runtime->kind != RUNTIME_RUBY)
        return 0;
    struct runtime_walk *walk = &scratch->runtime_walks[0];
    walk->frame = 0;
    if (!begin_ruby(scratch, runtime, walk))
        return 0;
    walk->id = runtime->id;
    return 1;
}

/* Reads the object of instructions at `iseq` into scratch->last, with its body and its first instruction. Returns 0 on
 * success. */
INLINE long read_ruby_function(struct scratch *scratch, u64 iseq)
{
    struct last_function *last = &scratch->last;
    u64 body, first, identity = 0;
    last->object = 0;
    if (bpf_probe_read_user(&body, sizeof(body), (void *)(iseq + RUBY_BODY)) ||
        copy_object(scratch, body, RUBY_BODY_BYTES))
        return 1;
    first = object_word(scratch, RUBY_INSTRUCTIONS);
    for (int i = 0; i < 4; i++)
        identity = (identity ^ object_word(scratch, RUBY_LOCATION + i * sizeof(u64))) * HASH_FACTOR;
    identity = (identity ^ first) * HASH_FACTOR;
    last->object = iseq;
    last->words[RUBY_LAST_BODY] = body;
    last->words[RUBY_LAST_FIRST] = first;
    last->identity = identity >> 32 | 1;
    last->form = object_int(scratch, RUBY_SIZE);
    return 0;
}

/* Records a method that is written in C, whose entry is at `method`, if the entry can be read. Returns 0 if the user
 * part is full. */
INLINE int push_ruby_method(struct scratch *scratch, u64 method, u64 base)
{
    struct last_function *last = &scratch->last;
    if (!method || method != last->object) {
        u64 identity = 0;
        last->object = 0;
        /* While Ruby makes a frame, the entry can be that of an earlier one. */
        if (copy_object(scratch, method, RUBY_METHOD_WORDS * sizeof(u64)))
            return 1;
        for (int i = 1; i < RUBY_METHOD_WORDS; i++)
            identity = (identity ^ object_word(scratch, i * sizeof(u64))) * HASH_FACTOR;
        last->object = method;
        last->identity = identity >> 32 | 1;
    }
    u64 address = RUBY_METHOD_FRAME | (method & ~7ull) | (base >> 44 & 7);
    int is_pushed = push_runtime_frame(scratch, address, base >> 12, last->identity);
    scratch->ruby_methods += is_pushed;
    return is_pushed;
}

/* Records the function of the control frame walk->frame, and goes on to its caller. Returns 1 after the last frame of
 * the loop. */
INLINE int step_in_ruby(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    struct last_function *last = &scratch->last;
    u64 bytes = runtime->offsets[RUBY_FRAME_BYTES];
    u16 jit_return = runtime->offsets[RUBY_JIT_RETURN];
    struct window *frames = &scratch->runtime_frames, *values = &scratch->runtime_values;
    u64 frame = walk->frame, environment = 0;
    if (!frame)
        return 1;
    /* The values of a caller lie below. */
    if (read_window(frames, frame, bytes, WINDOW_ABOVE))
        environment = window_word(frames, frame + RUBY_ENVIRONMENT);
    if (!environment || !read_window(values, environment - RUBY_METHOD, RUBY_METHOD + sizeof(u64), WINDOW_BELOW)) {
        walk->frame = 0;
        push_missing_functions(scratch);
        return 1;
    }
    walk->frame = frame + bytes < walk->more[RUBY_WALK_END] ? frame + bytes : 0;
    u64 flags = window_word(values, environment);
    u64 pc = window_word(frames, frame + RUBY_PC), iseq = window_word(frames, frame + RUBY_ISEQ);
    int is_compiled = jit_return && window_word(frames, frame + jit_return);
    if ((flags & RUBY_TYPE) == RUBY_C_METHOD && runtime->extra)
        return !push_ruby_method(scratch, window_word(values, environment - RUBY_METHOD), walk->more[RUBY_WALK_BASE]) ||
               !walk->frame;
    if (flags & RUBY_C_FRAME || (!pc && !is_compiled))
        return !walk->frame;
    int is_last = flags & RUBY_FINISH || !walk->frame;
    if ((!iseq || iseq != last->object) && read_ruby_function(scratch, iseq))
        return !push_missing_functions(scratch) || is_last;
    /* Compiled code leaves the program counter of an earlier frame at this place, until it calls something. */
    u64 position = (pc - last->words[RUBY_LAST_FIRST]) / sizeof(u64);
    if (position > last->form)
        position = RUBY_NO_POSITION;
    return !push_runtime_frame(scratch, last->words[RUBY_LAST_BODY], position, last->identity) || is_last;
}
