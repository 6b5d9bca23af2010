/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Per-CPU memory in which one record is built, and in which the walk of its user stack keeps its state. This memory is
 * larger than a BPF program's stack.
 */
#pragma once

#include "mappings/mapped.h"
#include "record.h"
#include "registers.h"
#include "runtimes.h"
#include "runtimes/hotspot_state.h"
#include "tables.h"
#include "types.h"
#include "window.h"

/*
 * The function that was recorded last in this walk. The next frame is often one of the same function, whose objects are
 * then not read again.
 */
struct last_function {
    u64 object;   /* 0: none */
    u64 words[2]; /* by the header of the runtime */
    u32 identity;
    u32 form; /* by the header of the runtime */
};

struct scratch {
    struct sample_header header;
    /* Labels and links follow the frames. */
    u64 frames[KERNEL_FRAMES_MAX + USER_WORDS_MAX + LABELS_MAX * sizeof(struct label) / sizeof(u64) +
               LINKS_MAX * sizeof(struct link) / sizeof(u64)];
    /* Registers of the innermost frame, or of a frame that a signal interrupted, by DWARF number. */
    u64 registers[REGISTERS];
    struct window stack; /* of the native stack */
    /* Of the frames of an interpreter, and of their values. */
    struct window runtime_frames;
    struct window runtime_values;
    struct mapped mapped;
    struct mapped compiler; /* file of the code that called compiled code (compiled.h) */
    struct rule rule; /* rule of the current frame */
    /* State of the walk. It is not in struct walk, because the verifier would track each value of it there. */
    u64 go; /* Go offsets of the last Go program on the stack; 0: none */
    struct runtime_walk runtime_walks[RUNTIME_WALKS];
    struct hotspot hotspot;
    struct last_function last;
    u64 object[OBJECT_WORDS];   /* copy of the start of an object of a runtime */
    u64 identity[OBJECT_WORDS]; /* copy of the words that identify a function's object */
    u32 runtime;                /* id of the interpreter whose frames are recorded now; 0: none */
    u32 runtime_walk;           /* index of its walk */
    u64 php_loop;             /* an address in PHP's loop, for a frame of code that PHP has compiled */
    u32 php_compiled;         /* number of frames that can be of such code */
    u32 compiled;             /* the same for code of other compilers (compiled.h) */
    u32 is_compiler_unsure;   /* 1 if a search for a compiler has found a file without a table */
    u32 is_loop_passed;       /* 1 if the frames of the current native frame's loop are recorded */
    u64 v8_function_map;      /* maps of V8's objects in this program, if they are known (v8.h) */
    u64 v8_array_map;
    u32 v8;                   /* id of the V8 of this program; 0: none */
    u32 is_v8_known;          /* 1 if the three fields above are those of this program */
    u32 ruby_methods;         /* number of frames of methods of Ruby that are written in C */
    u32 user_frames;
    u32 steps_back;
    u32 end;           /* enum user_end */
    u32 has_no_caller; /* 1 if the last rule gave a return address of 0 */
    u32 is_exact;      /* 1 if pc is not a return address */
    u32 has_registers; /* 1 if `registers` are those of the current frame */
};

/* Appends a frame of one word. Returns 0 if the user part is full. */
INLINE int push_frame(struct scratch *scratch, u64 frame)
{
    u32 words = scratch->header.user_words;
    u32 at = scratch->header.kernel_frames + words;
    if (scratch->user_frames >= USER_FRAMES_MAX || at >= KERNEL_FRAMES_MAX + USER_WORDS_MAX)
        return 0;
    scratch->frames[at] = frame;
    scratch->header.user_words = words + 1;
    scratch->user_frames += 1;
    return 1;
}

/* Appends a frame of a runtime, encoded as in record.h. Returns 0 if the user part is full. */
INLINE int push_runtime_frame(struct scratch *scratch, u64 address, u32 position, u32 identity)
{
    u32 words = scratch->header.user_words;
    u32 at = scratch->header.kernel_frames + words;
    if (scratch->user_frames >= USER_FRAMES_MAX || at >= KERNEL_FRAMES_MAX + USER_WORDS_MAX - 1)
        return 0;
    u64 id = scratch->runtime;
    scratch->frames[at] = FRAME_OF_RUNTIME | id << FRAME_ID_SHIFT | (address & ((1ull << FRAME_ID_SHIFT) - 1));
    scratch->frames[at + 1] = (u64)position << 32 | identity;
    scratch->header.user_words = words + 2;
    scratch->user_frames += 1;
    return 1;
}

/* Appends a frame in place of functions that cannot be read. Returns 0 if the user part is full. */
INLINE int push_missing_functions(struct scratch *scratch) { return push_runtime_frame(scratch, 0, 0, 0); }

/*
 * Copies the first `bytes` bytes at an address to scratch->object. Returns 0 on success.
 *
 * A frame has several fields that the walk needs, and one read of all of them costs less than a read of each.
 */
INLINE long copy_object(struct scratch *scratch, u64 address, u32 bytes)
{
    if (!address || bytes > sizeof(scratch->object))
        return 1;
    return bpf_probe_read_user(scratch->object, bytes, (void *)address);
}

/* The fields of the copy. Offsets beyond it are wrong, but they read within it. */
INLINE u64 object_word(const struct scratch *scratch, u32 offset)
{
    return scratch->object[offset / sizeof(u64) % OBJECT_WORDS];
}

INLINE u32 object_int(const struct scratch *scratch, u32 offset)
{
    return ((const u32 *)scratch->object)[offset / sizeof(u32) % (2 * OBJECT_WORDS)];
}

INLINE u8 object_byte(const struct scratch *scratch, u32 offset)
{
    return ((const u8 *)scratch->object)[offset % sizeof(scratch->object)];
}
