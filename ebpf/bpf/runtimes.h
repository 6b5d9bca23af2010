/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Language runtimes, by the file that has the runtime's code. User space describes them
 * (ebpf/src/runtime.rs).
 *
 * An interpreter runs functions of its language in a loop. When the walk comes to a frame of this loop, it first
 * records the frames of the functions that the loop runs, and then the loop's own frame.
 */
#pragma once

#include "thread_pointer.h"
#include "types.h"

/* A power of two. */
#define RUNTIMES_MAX 256
/* Compilers split a function into two parts. */
#define LOOP_PARTS 2
/* Places of the description of a thread, tried in this order. */
#define THREAD_POINTERS 2
#define RUNTIME_OFFSETS 24
/* Number of runtimes on one stack whose frames are recorded. */
#define RUNTIME_WALKS 4
/* Words of an object that are copied at once: a power of two. */
#define OBJECT_WORDS 16

enum runtime_kind {
    RUNTIME_NONE = 0,
    RUNTIME_PYTHON = 1,
    RUNTIME_PERL = 2,
    RUNTIME_RUBY = 3,
    RUNTIME_PHP = 4,
    RUNTIME_V8 = 5,
    RUNTIME_HOTSPOT = 6,
    RUNTIME_PCRE = 7, /* no language, but a compiler of regular expressions */
};

/* Position in the frames of one interpreter. Interpreters can call each other, so each has a walk. */
struct runtime_walk {
    u64 frame;   /* next frame to record; 0: none is left */
    u64 more[3]; /* by the header of the runtime */
    u32 id;      /* struct runtime.id; 0: not in use */
    u32 zero;
};

/* ELF virtual addresses [start, end). */
struct code_range {
    u64 start;
    u64 end;
};

/*
 * The id is the number of the slot in `runtimes`, plus RUNTIMES_MAX times a generation below 64. The generation is the
 * number of descriptions that the slot had before. A file or frame with another id is of such an earlier description.
 */
struct runtime {
    u32 kind; /* enum runtime_kind */
    u32 id;
    struct code_range loop[LOOP_PARTS];
    struct thread_pointer threads[THREAD_POINTERS]; /* the runtime's description of a thread */
    struct code_range callers;                      /* code that calls code compiled in memory (compiled.h) */
    u64 extra;                                      /* another ELF address, by the header of the runtime */
    u16 offsets[RUNTIME_OFFSETS];                   /* by the header of the runtime */
};

_Static_assert(sizeof(struct runtime) == 160, "");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, RUNTIMES_MAX);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct runtime);
} runtimes SEC(".maps");

/* Returns the runtime with an id; 0 if its slot has another one. Id 0 stands for a description of kind RUNTIME_NONE. */
INLINE struct runtime *find_runtime(u32 id)
{
    u32 slot = id % RUNTIMES_MAX;
    struct runtime *runtime = bpf_map_lookup_elem(&runtimes, &slot);
    return runtime && runtime->id == id ? runtime : 0;
}

INLINE int is_in(const struct code_range *range, u64 address)
{
    return address - range->start < range->end - range->start;
}

INLINE int is_in_loop(const struct runtime *runtime, u64 address)
{
    return is_in(&runtime->loop[0], address) || is_in(&runtime->loop[1], address);
}
