/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the walk knows about a process that runs HotSpot (hotspot.h), and about its current frame there.
 */
#pragma once

#include "../runtimes.h"
#include "../types.h"

#define HOTSPOT_HEAPS 4
/* Words of a block that are copied at once: a power of two. */
#define HOTSPOT_BLOCK_WORDS 64
/* Bytes of code that are copied before and after the current instruction. */
#define HOTSPOT_CODE_BEFORE 64
#define HOTSPOT_CODE_BYTES 88

/* A code heap: addresses [start, end), and the address of its map of segments. */
struct hotspot_heap {
    u64 start;
    u64 end;
    u64 segments;
};

/* The code of HotSpot in a process, as user space stores it (ebpf/src/hotspot.rs). It does not change until the process
 * ends. */
struct hotspot_process {
    u64 interpreter_start;
    u64 interpreter_end;
    u64 compiled; /* first word of each compiled method, unless blobs have a kind */
    u64 barrier;  /* return address of frames whose callers are in the Java heap; 0: none */
    u32 shift;    /* binary logarithm of the size of a segment */
    u32 entry_bytes; /* size of the entry of a virtual thread's frames */
    u32 runtime;     /* id of the description of this HotSpot */
    u32 zero;
    struct hotspot_heap heap[HOTSPOT_HEAPS];
};

enum hotspot_state {
    HOTSPOT_UNKNOWN = 0, /* the process was not looked up yet */
    HOTSPOT_NONE = 1,
    HOTSPOT_FOUND = 2,
};

struct hotspot {
    u32 state; /* enum hotspot_state */
    u16 offsets[RUNTIME_OFFSETS];
    struct hotspot_process process;
    /* Registers of the current frame, which the step replaces by those of the caller. */
    u64 pc, sp, fp, bx;
    /* Blob of the current frame. */
    u64 blob;
    u64 code;        /* first instruction */
    u32 frame_bytes; /* 0: the blob has no frame of its own */
    int complete;    /* offset of the first instruction whose frame is complete; negative: unknown */
    u32 is_compiled; /* 1 for a compiled method or the wrapper of a native method */
    u32 zero;
    u64 block[HOTSPOT_BLOCK_WORDS]; /* copy of the start of the block */
    u64 words[8];                   /* copied words of the stack */
    u8 bytes[HOTSPOT_CODE_BYTES];   /* copy of the code around pc */
};
