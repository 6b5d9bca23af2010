/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The code of HotSpot, the virtual machine of Java 8 and later: its code heaps, and the blobs in them.
 *
 * Code that HotSpot makes has no file. It lies in up to four code heaps, whose addresses user space stores for each
 * process. A heap consists of blocks, and a block in use has a blob: a compiled method, a stub, or the interpreter. A
 * map of segments leads from an address to its block. The header of the blob has the size of the frame.
 *
 * hotspot_frame.h and hotspot_leaf.h have the rules of the frames.
 */
#pragma once

#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "hotspot_state.h"

/* Indices of offsets[], all in bytes. */
enum hotspot_offset {
    HOTSPOT_BLOCK_BYTES = 0, /* no offset: the size of a block's header, which precedes the blob */
    HOTSPOT_USED = 1,        /* in a block: the byte that is 1 if it is in use */
    HOTSPOT_SIZE = 2,        /* in a blob: its size */
    HOTSPOT_FRAME_SIZE = 3,  /* in a blob: the size of its frame in words, 32 bits */
    HOTSPOT_COMPLETE = 4,    /* in a blob: the offset of the first instruction whose frame is complete */
    HOTSPOT_CODE = 5,        /* in a blob: its first instruction */
    HOTSPOT_KIND = 6,        /* in a blob: the byte with its kind */
    HOTSPOT_NAME = 7,        /* in a blob: its name */
    HOTSPOT_METHOD = 8,      /* in a compiled method: the method */
    HOTSPOT_DEOPT = 9,       /* in a compiled method: the address to which frames return that are not valid any more */
    HOTSPOT_DEOPT_HANDLE = 10, /* the same for frames that called a method handle; 0: none */
    HOTSPOT_ORIGINAL_PC = 11,  /* in a compiled method: where such a frame keeps its original return address */
    HOTSPOT_COMPILE_ID = 12,   /* in a compiled method: the number of the compilation */
    HOTSPOT_BLOB_END = 13,     /* in a compiled method: the end of the fields above */
    HOTSPOT_CONSTANT = 14,     /* in a method: its constant part */
    HOTSPOT_POOL = 15,         /* in a constant part: the constant pool */
    HOTSPOT_CODE_SIZE = 16,    /* in a constant part: the number of bytes of bytecode, 16 bits */
    HOTSPOT_BYTECODES = 17,    /* in a constant part: its end, at which the bytecodes begin */
    HOTSPOT_HOLDER = 18,       /* in a constant pool: the class */
    HOTSPOT_CLASS_NAME = 19,   /* in a class: its name */
    HOTSPOT_FRAME_BYTECODE = 20, /* in a frame of the interpreter: the bytecode, below the frame pointer */
    HOTSPOT_SAVED_PC = 21,       /* in a thread: the address at which a safepoint stopped it */
    HOTSPOT_FORM = 22,           /* no offset: bits of HOTSPOT_*_FORM */
};

#define HOTSPOT_KIND_FORM 1           /* blobs have a kind; else compiled methods have a first word of their own */
#define HOTSPOT_CODE_OFFSET_FORM 2    /* HOTSPOT_CODE has a distance from the blob */
#define HOTSPOT_SHORT_COMPLETE_FORM 4 /* HOTSPOT_COMPLETE has 16 bits */
#define HOTSPOT_DEOPT_OFFSET_FORM 8   /* HOTSPOT_DEOPT has a distance from the blob */
#define HOTSPOT_COUNT_SECOND_FORM 16  /* the number of references to a text is in its bytes 2 and 3; else in 0 and 1 */

/* Kind of a compiled method. */
#define HOTSPOT_COMPILED 1
/* Largest size of a frame, in words. */
#define HOTSPOT_FRAME_WORDS_MAX (1 << 16)
/* Bytes of a block that are read if the memory ends before those of a compiled method do. */
#define HOTSPOT_STUB_BYTES 120
/* Steps from a segment to the first one of its block. Each leads over up to 254 segments. */
#define HOTSPOT_HOPS_MAX 64
#define HOTSPOT_NO_SEGMENT 0xff

/* Kinds of a frame, in the lowest bits of its address. */
#define HOTSPOT_INTERPRETED_FRAME 1
#define HOTSPOT_CODE_FRAME 2
#define HOTSPOT_NO_BYTECODE 0xffffffff
/* In place of the address of a bytecode: the method has not begun yet. */
#define HOTSPOT_START 1
/* Bit of a position in code whose frame is not set up, or is removed already. */
#define HOTSPOT_WITHOUT_INLINED 0x80000000

struct hotspot_key {
    u64 start_boottime_ns;
    u64 exec_id;
    u64 pid;
};

_Static_assert(sizeof(struct hotspot_key) == 24, "");
_Static_assert(sizeof(struct hotspot_process) == 144, "");

/* Processes that run HotSpot. User space adds each when it sees the first sample. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
    MAP_UINT(max_entries, 8192);
    MAP_TYPE(key, struct hotspot_key);
    MAP_TYPE(value, struct hotspot_process);
} hotspot_processes SEC(".maps");

#ifdef TARGET_X86_64

INLINE u16 hotspot_offset_of(const struct scratch *scratch, u32 index)
{
    return scratch->hotspot.offsets[index % RUNTIME_OFFSETS];
}

INLINE u16 hotspot_form(const struct scratch *scratch)
{
    return hotspot_offset_of(scratch, HOTSPOT_FORM);
}

/* Finds out whether the process runs HotSpot. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int find_hotspot(struct scratch *scratch)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    struct hotspot_key key = {
        .start_boottime_ns = scratch->header.start_boottime_ns,
        .exec_id = scratch->header.exec_id,
        .pid = scratch->header.pid,
    };
    hotspot->state = HOTSPOT_NONE;
    struct hotspot_process *process = bpf_map_lookup_elem(&hotspot_processes, &key);
    struct runtime *runtime = process ? find_runtime(process->runtime) : 0;
    if (!process || !runtime || runtime->kind != RUNTIME_HOTSPOT)
        return 0;
    hotspot->process = *process;
    for (int i = 0; i < RUNTIME_OFFSETS; i++)
        hotspot->offsets[i] = runtime->offsets[i];
    hotspot->blob = 0;
    hotspot->state = HOTSPOT_FOUND;
    return 1;
}

/* Returns 1 + the index of the code heap that holds an address; 0 if there is none. */
INLINE u32 hotspot_heap_of(const struct scratch *scratch, u64 address)
{
    u32 heap = 0;
    for (u32 i = 0; i < HOTSPOT_HEAPS; i++) {
        const struct hotspot_heap *at = &scratch->hotspot.process.heap[i];
        heap += step_if(i + 1, (s64)(address - at->start) | (s64)(at->end - 1 - address));
    }
    return heap;
}

/* Fields of the copied block. Offsets are relative to the blob. Those beyond the copy are wrong, but they read within
 * it. */
INLINE u64 blob_word(const struct scratch *scratch, u32 offset)
{
    offset += hotspot_offset_of(scratch, HOTSPOT_BLOCK_BYTES);
    return scratch->hotspot.block[offset / sizeof(u64) % HOTSPOT_BLOCK_WORDS];
}

INLINE u32 blob_int(const struct scratch *scratch, u32 offset)
{
    offset += hotspot_offset_of(scratch, HOTSPOT_BLOCK_BYTES);
    return ((const u32 *)scratch->hotspot.block)[offset / sizeof(u32) % (2 * HOTSPOT_BLOCK_WORDS)];
}

INLINE u16 blob_short(const struct scratch *scratch, u32 offset)
{
    offset += hotspot_offset_of(scratch, HOTSPOT_BLOCK_BYTES);
    return ((const u16 *)scratch->hotspot.block)[offset / sizeof(u16) % (4 * HOTSPOT_BLOCK_WORDS)];
}

INLINE u8 block_byte(const struct scratch *scratch, u32 offset)
{
    return ((const u8 *)scratch->hotspot.block)[offset % sizeof(scratch->hotspot.block)];
}

/* Returns the address of the block that holds an address in a heap; 0 if there is none. */
INLINE u64 find_code_block(const struct hotspot_process *process, u32 heap_number, u64 address)
{
    const struct hotspot_heap *heap = &process->heap[(heap_number - 1) % HOTSPOT_HEAPS];
    u32 shift = process->shift & 31;
    u64 segment = (address - heap->start) >> shift;
    u8 back;
    for (int i = 0; i < HOTSPOT_HOPS_MAX; i++) {
        if (bpf_probe_read_user(&back, sizeof(back), (void *)(heap->segments + segment)) || back == HOTSPOT_NO_SEGMENT)
            return 0;
        if (!back)
            return heap->start + (segment << shift);
        segment -= back;
    }
    return 0;
}

/* Copies the header of the block that holds an address, and finds the properties of its blob. Returns 0 if there is
 * none. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int read_blob(struct scratch *scratch, u64 address)
{
    if (!scratch)
        return 0;
    struct hotspot *hotspot = &scratch->hotspot;
    /* The next frame is often one of the same blob. */
    if (hotspot->blob && address - hotspot->blob < blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_SIZE)))
        return 1;
    hotspot->blob = 0;
    u32 heap = hotspot_heap_of(scratch, address), block_bytes = hotspot_offset_of(scratch, HOTSPOT_BLOCK_BYTES);
    u64 block = heap ? find_code_block(&hotspot->process, heap, address) : 0;
    u32 bytes = block_bytes + hotspot_offset_of(scratch, HOTSPOT_BLOB_END), form = hotspot_form(scratch);
    if (!block || bytes > sizeof(hotspot->block))
        return 0;
    if (bpf_probe_read_user(hotspot->block, bytes, (void *)block) &&
        bpf_probe_read_user(hotspot->block, HOTSPOT_STUB_BYTES, (void *)block))
        return 0;
    if (block_byte(scratch, hotspot_offset_of(scratch, HOTSPOT_USED)) != 1)
        return 0;
    u64 blob = hotspot->blob = block + block_bytes;
    if (form & HOTSPOT_KIND_FORM)
        hotspot->is_compiled =
            block_byte(scratch, block_bytes + hotspot_offset_of(scratch, HOTSPOT_KIND)) == HOTSPOT_COMPILED;
    else
        hotspot->is_compiled = blob_word(scratch, 0) == hotspot->process.compiled;
    u32 code = hotspot_offset_of(scratch, HOTSPOT_CODE), complete = hotspot_offset_of(scratch, HOTSPOT_COMPLETE);
    hotspot->code = form & HOTSPOT_CODE_OFFSET_FORM ? blob + (int)blob_int(scratch, code) : blob_word(scratch, code);
    hotspot->complete =
        form & HOTSPOT_SHORT_COMPLETE_FORM ? (short)blob_short(scratch, complete) : (int)blob_int(scratch, complete);
    u32 words = blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_FRAME_SIZE));
    hotspot->frame_bytes = words < HOTSPOT_FRAME_WORDS_MAX ? words * sizeof(u64) : 0;
    return 1;
}

/* Returns the identity of the copied blob as one number. */
INLINE u32 hotspot_code_identity(const struct scratch *scratch)
{
    u64 frame_size = (u64)blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_FRAME_SIZE)) << 32;
    u64 size = blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_SIZE)), first, second, third;
    if (scratch->hotspot.is_compiled) {
        first = blob_int(scratch, hotspot_offset_of(scratch, HOTSPOT_COMPILE_ID)) | frame_size;
        second = blob_word(scratch, hotspot_offset_of(scratch, HOTSPOT_METHOD));
        third = size;
    } else {
        first = size | frame_size;
        second = blob_word(scratch, hotspot_offset_of(scratch, HOTSPOT_NAME));
        third = scratch->hotspot.code - scratch->hotspot.blob;
    }
    u64 identity = first * HASH_FACTOR;
    identity = (identity ^ second) * HASH_FACTOR;
    identity = (identity ^ third) * HASH_FACTOR;
    return identity >> 32 | 1;
}

/* Records the frame of the copied blob, at an address in its code. */
INLINE void push_code_frame(struct scratch *scratch, u64 address, u32 flags)
{
    const struct hotspot *hotspot = &scratch->hotspot;
    u32 position = address - hotspot->blob;
    scratch->runtime = hotspot->process.runtime;
    push_runtime_frame(scratch, hotspot->blob | HOTSPOT_CODE_FRAME, position | flags, hotspot_code_identity(scratch));
    scratch->runtime = 0;
}

/* Words of the method that was recorded last: its bytecodes, and their size. */
#define HOTSPOT_LAST_BYTECODES 0
#define HOTSPOT_LAST_BYTES 1

/* Reads a method into scratch->last. Its identity is 0 if it cannot be read.
 *
 * HotSpot often places the method of another class at the address of a method that is gone, so the name of the class
 * is part of the identity, with its hash. */
INLINE void read_method(struct scratch *scratch, u64 method)
{
    struct last_function *last = &scratch->last;
    u64 constant, holder, name, text, identity = 0;
    u32 window = hotspot_offset_of(scratch, HOTSPOT_CODE_SIZE), end = hotspot_offset_of(scratch, HOTSPOT_BYTECODES);
    u64 mask = hotspot_form(scratch) & HOTSPOT_COUNT_SECOND_FORM ? 0xffffffff0000ffffull : 0xffffffffffff0000ull;
    last->object = method;
    last->words[HOTSPOT_LAST_BYTECODES] = last->words[HOTSPOT_LAST_BYTES] = last->identity = 0;
    if (bpf_probe_read_user(&constant, sizeof(constant),
                            (void *)(method + hotspot_offset_of(scratch, HOTSPOT_CONSTANT))) ||
        copy_object(scratch, constant, end))
        return;
    u64 pool = object_word(scratch, hotspot_offset_of(scratch, HOTSPOT_POOL));
    last->words[HOTSPOT_LAST_BYTECODES] = constant + end;
    last->words[HOTSPOT_LAST_BYTES] = object_int(scratch, window & ~3) >> (window & 3) * 8 & 0xffff;
    if (bpf_probe_read_user(&holder, sizeof(holder), (void *)(pool + hotspot_offset_of(scratch, HOTSPOT_HOLDER))) ||
        bpf_probe_read_user(&name, sizeof(name), (void *)(holder + hotspot_offset_of(scratch, HOTSPOT_CLASS_NAME))) ||
        bpf_probe_read_user(&text, sizeof(text), (void *)name))
        return;
    u64 words[6] = { constant, pool, object_word(scratch, window), object_word(scratch, window + 8), name,
                     text & mask };
    for (int i = 0; i < 6; i++)
        identity = (identity ^ words[i]) * HASH_FACTOR;
    last->identity = identity >> 32 | 1;
}

/* Records the frame of a method that the interpreter runs. `first` and `second` are addresses of bytecodes, of which
 * the first one in the method counts. Native methods have none. Not inlined, so that the verifier checks the function
 * once. */
__attribute__((noinline)) int push_method_frame(struct scratch *scratch, u64 method, u64 first, u64 second)
{
    /* A word that is no address of a method is there if the frame is not what it seems. */
    if (!scratch || !method || method & 7)
        return 0;
    struct last_function *last = &scratch->last;
    if (method != last->object)
        read_method(scratch, method);
    u64 start = last->words[HOTSPOT_LAST_BYTECODES], bytes = last->words[HOTSPOT_LAST_BYTES];
    u32 position = HOTSPOT_NO_BYTECODE;
    if (start && first == HOTSPOT_START)
        position = 0;
    else if (first - start < bytes)
        position = first - start;
    else if (second - start < bytes)
        position = second - start;
    scratch->runtime = scratch->hotspot.process.runtime;
    push_runtime_frame(scratch, method | HOTSPOT_INTERPRETED_FRAME, position, last->identity);
    scratch->runtime = 0;
    return 1;
}

#endif
