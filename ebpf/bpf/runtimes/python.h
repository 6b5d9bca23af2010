/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks the frames of CPython 3.6 and later.
 *
 * The description of a thread points to the frame that runs, and each frame to its caller's. Before Python 3.11, the
 * interpreter calls its loop once for each frame. Since then, a loop also runs the functions that its function calls.
 * The first frame of a loop has a mark (3.11), or an entry frame without a function is below it (3.12 and later).
 *
 * The program may change all of these structures while BPF reads them. The identity of a code object is therefore part
 * of the frame. User space names the frame only if the code object has the same identity then.
 */
#pragma once

#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Indices of offsets[], all in bytes. */
enum python_offset {
    PYTHON_THREAD_FRAME = 0, /* in a thread: its frame, or the struct that points to its frame */
    PYTHON_CHAIN_FRAME = 1,  /* in that struct: the frame */
    PYTHON_CODE = 2,         /* in a frame: its code object */
    PYTHON_CALLER = 3,       /* in a frame: its caller's frame */
    PYTHON_POSITION = 4,     /* in a frame: the instruction, as a pointer or as a number */
    PYTHON_ENTRY = 5,        /* in a frame: the byte that marks the first frame of a loop */
    PYTHON_INSTRUCTIONS = 6, /* in a code object: its instructions */
    PYTHON_IDENTITY = 7,     /* in a code object: words that identify it and that never change */
    PYTHON_FRAME_BYTES = 8,  /* in a frame: the end of the fields above */
    PYTHON_ENTRY_VALUE = 9,  /* no offset: the value of the mark */
    PYTHON_FORM = 10,        /* no offset: bits of PYTHON_*_FORM */
    PYTHON_COPY = 11,        /* in a frame: the number of its thread's copy of the instructions, 32 bits */
    PYTHON_COPIES = 12,      /* in a code object: the copies, a count and a pointer to each copy */
    PYTHON_IDENTITY_END = 13, /* in a code object: the end of these words */
    PYTHON_THREAD_ID = 14,   /* in a thread: what pthread_self() returns in it */
    PYTHON_NAME = 15,        /* in a code object, among the words that identify it: its name; 0: these words have a
                                number that no other code object has, so the name is not needed */
    PYTHON_NAME_HASH = 16,   /* in a name: its hash */
};

#define PYTHON_CHAIN_FORM 1    /* the thread points to a struct that points to the frame */
#define PYTHON_POINTER_FORM 2  /* the position is a pointer */
#define PYTHON_LOOP_FORM 4     /* a loop runs several frames */
#define PYTHON_FUNCTION_FORM 8 /* the marked frame has a function */
#define PYTHON_COPY_FORM 16    /* each thread has its own copy of a function's instructions */

/* A position that is negative, as before the first instruction. */
#define PYTHON_NO_POSITION 0xffffffff
/* Tags in the lower bits of a pointer to a code object. */
#define PYTHON_TAGS 7ull

/*
 * Reads the description of the running thread. Returns 0 on success.
 *
 * A thread that does not hold the interpreter's lock, because it waits or runs C code, is in the second place only. A
 * thread that runs several interpreters in turn has a description for each. The second place has only the first of
 * them, and the first place has that of the interpreter that runs.
 */
INLINE long python_thread(u64 *thread, const struct runtime *runtime, u64 to_address)
{
    u64 id, base;
    const struct thread_pointer *first = &runtime->threads[0];
    if (!read_thread_pointer(thread, first, to_address) && *thread) {
        if (first->kind != THREAD_GLOBAL)
            return 0;
        /* The pointer is that of the thread that holds the lock. */
        if (!bpf_probe_read_user(&id, sizeof(id), (void *)(*thread + runtime->offsets[PYTHON_THREAD_ID])) &&
            !read_thread_base(&base) && id == base)
            return 0;
    }
    return read_thread_pointer(thread, &runtime->threads[1], to_address);
}

/* Returns the frame that the thread runs; 0 if it runs none. */
INLINE u64 python_frame(struct scratch *scratch, const struct runtime *runtime)
{
    u64 frame;
    if (python_thread(&frame, runtime, scratch->mapped.to_address) || !frame ||
        bpf_probe_read_user(&frame, sizeof(frame), (void *)(frame + runtime->offsets[PYTHON_THREAD_FRAME])))
        return 0;
    if (runtime->offsets[PYTHON_FORM] & PYTHON_CHAIN_FORM &&
        bpf_probe_read_user(&frame, sizeof(frame), (void *)(frame + runtime->offsets[PYTHON_CHAIN_FRAME])))
        return 0;
    return frame;
}

/* Returns the identity of a code object as one number; 0 if it cannot be read. A name that is made after a freed one
 * often has the same address, so the hash of the name is a part of the identity. */
INLINE u32 python_identity(struct scratch *scratch, const struct runtime *runtime, u64 code)
{
    u32 start = runtime->offsets[PYTHON_IDENTITY], bytes = runtime->offsets[PYTHON_IDENTITY_END] - start;
    u16 name = runtime->offsets[PYTHON_NAME];
    u64 identity = 0, hash;
    if (bytes > sizeof(scratch->identity) ||
        bpf_probe_read_user(scratch->identity, bytes, (void *)(code + start)))
        return 0;
    for (u32 i = 0; i < OBJECT_WORDS && i < bytes / sizeof(u64); i++)
        identity = (identity ^ scratch->identity[i]) * HASH_FACTOR;
    if (name) {
        u64 at = scratch->identity[(name - start) / sizeof(u64) % OBJECT_WORDS] + runtime->offsets[PYTHON_NAME_HASH];
        if (bpf_probe_read_user(&hash, sizeof(hash), (void *)at))
            return 0;
        identity = (identity ^ hash) * HASH_FACTOR;
    }
    return identity >> 32 | 1;
}

/* Returns the position in the copied frame: an offset in bytes from the first instruction, or the frame's number. */
INLINE u32 python_position(const struct window *frames, const struct runtime *runtime, u64 frame, u64 code)
{
    u16 offset = runtime->offsets[PYTHON_POSITION], form = runtime->offsets[PYTHON_FORM];
    if (!(form & PYTHON_POINTER_FORM))
        return window_int(frames, frame + offset);
    u64 first = code + runtime->offsets[PYTHON_INSTRUCTIONS], copies;
    u64 copy = window_int(frames, frame + runtime->offsets[PYTHON_COPY]);
    if (form & PYTHON_COPY_FORM &&
        (bpf_probe_read_user(&copies, sizeof(copies), (void *)(code + runtime->offsets[PYTHON_COPIES])) ||
         bpf_probe_read_user(&first, sizeof(first), (void *)(copies + sizeof(u64) * (1 + copy)))))
        return PYTHON_NO_POSITION;
    return window_word(frames, frame + offset) - first;
}

/* Records the frame walk->frame, and goes on to its caller. Returns 1 after the last frame of the loop. The loop has
 * no frame for a moment when it begins, so a loop without a frame is no error. */
INLINE int step_in_python(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    struct last_function *last = &scratch->last;
    u16 form = runtime->offsets[PYTHON_FORM];
    u64 frame = walk->frame;
    struct window *frames = &scratch->runtime_frames;
    /* Frames are objects of their own, or lie above their callers'. */
    enum window_side side = form & PYTHON_LOOP_FORM ? WINDOW_BELOW : WINDOW_NONE;
    if (!frame)
        return 1;
    if (!read_window(frames, frame, runtime->offsets[PYTHON_FRAME_BYTES], side)) {
        walk->frame = 0;
        push_missing_functions(scratch);
        return 1;
    }
    walk->frame = window_word(frames, frame + runtime->offsets[PYTHON_CALLER]);
    int is_last = !(form & PYTHON_LOOP_FORM) ||
                  window_byte(frames, frame + runtime->offsets[PYTHON_ENTRY]) == runtime->offsets[PYTHON_ENTRY_VALUE];
    if (is_last && form & PYTHON_LOOP_FORM && !(form & PYTHON_FUNCTION_FORM))
        return 1;
    u64 code = window_word(frames, frame + runtime->offsets[PYTHON_CODE]) & ~PYTHON_TAGS;
    u32 position = python_position(frames, runtime, frame, code);
    if (code != last->object) {
        last->object = code;
        last->identity = python_identity(scratch, runtime, code);
    }
    return !push_runtime_frame(scratch, code, position, last->identity) || is_last;
}
