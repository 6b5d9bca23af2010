/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads a pointer that each thread of a program has for itself, such as a runtime's description of the thread. User
 * space finds out how the program keeps it (agent/src/runtimes/thread_getter.rs).
 */
#pragma once

#include "types.h"

/* Kind of the place in which a program keeps a pointer of each thread. The base is the address of the thread's control
 * block. */
enum thread_pointer_kind {
    THREAD_NONE = 0,
    THREAD_GLOBAL = 1,  /* all threads have the same pointer, at `address` */
    THREAD_FIXED = 2,   /* at `offset` from the base */
    THREAD_SLOT = 3,    /* the word at `address` is the offset from the base */
    THREAD_DYNAMIC = 4, /* the words at `address` are a module's number, and an offset in its block; plus `offset` */
    THREAD_KEY = 5,     /* the int at `address` is a key of pthread_getspecific() */
};

struct thread_pointer {
    u64 address; /* ELF virtual address */
    s64 offset;
    u32 kind;    /* enum thread_pointer_kind */
    u32 is_musl; /* 1 if the C library is musl, 0 if it is glibc */
};

_Static_assert(sizeof(struct thread_pointer) == 24, "");

#ifdef TARGET_X86_64

/* Layout of a thread's control block in glibc on x86-64: the table of the blocks of all modules, and the values of
 * keys. The first keys have an array of their own, and the others have arrays of the same length behind pointers. */
#define BLOCKS 8
#define GLIBC_BLOCK_BYTES 16
#define GLIBC_FIRST_KEYS 0x310
#define GLIBC_KEY_ARRAYS 0x510
#define GLIBC_KEYS_PER_ARRAY 32
#define GLIBC_KEYS_MAX 1024

/* Layout of a thread's control block in musl 1.2.2 and later on x86-64: the values of all keys are in one array. The
 * table of the blocks is at the same place as that of glibc. */
#define MUSL_BLOCK_BYTES 8
#define MUSL_KEYS 0x80
#define MUSL_KEYS_MAX 128

/* A value of a key, and the number by which glibc detects that a deleted key is used again. */
struct glibc_value {
    u64 sequence;
    u64 value;
};

/* Reads the value of a key. Returns 0 on success. */
INLINE long read_glibc_key(u64 *value, u64 base, u32 key)
{
    u64 array = base + GLIBC_FIRST_KEYS;
    if (key >= GLIBC_KEYS_MAX)
        return 1;
    if (key >= GLIBC_KEYS_PER_ARRAY &&
        bpf_probe_read_user(&array, sizeof(array), (void *)(base + GLIBC_KEY_ARRAYS + key / GLIBC_KEYS_PER_ARRAY * 8)))
        return 1;
    u64 at = array + key % GLIBC_KEYS_PER_ARRAY * sizeof(struct glibc_value) + 8;
    return bpf_probe_read_user(value, sizeof(*value), (void *)at);
}

/* Reads the value of a key of musl. Returns 0 on success. */
INLINE long read_musl_key(u64 *value, u64 base, u32 key)
{
    u64 array;
    return key >= MUSL_KEYS_MAX || bpf_probe_read_user(&array, sizeof(array), (void *)(base + MUSL_KEYS)) ||
           bpf_probe_read_user(value, sizeof(*value), (void *)(array + key * sizeof(u64)));
}

/* Reads a word of the block of a module. Returns 0 on success. If the thread has not used the module yet, its table may
 * be too short, or have an address at which nothing can be. Modules are numbered from 1. The number of modules is in
 * entry 0 in musl, and in entry -1 in glibc. */
INLINE long read_module_block(u64 *value, u64 base, u64 module, u64 offset, u32 is_musl)
{
    u64 blocks, block, modules, bytes = is_musl ? MUSL_BLOCK_BYTES : GLIBC_BLOCK_BYTES;
    if (bpf_probe_read_user(&blocks, sizeof(blocks), (void *)(base + BLOCKS)) ||
        bpf_probe_read_user(&modules, sizeof(modules), (void *)(is_musl ? blocks : blocks - bytes)) ||
        module > modules || bpf_probe_read_user(&block, sizeof(block), (void *)(blocks + module * bytes)))
        return 1;
    return bpf_probe_read_user(value, sizeof(*value), (void *)(block + offset));
}

/* Reads the address of the control block of the running thread, which is also what pthread_self() returns. Returns 0 on
 * success. */
INLINE long read_thread_base(u64 *base)
{
    struct task_struct *task = bpf_get_current_task_btf();
    return READ_FIELD(*base, task, thread.fsbase);
}

/*
 * Reads the pointer of the running thread into `value`. `to_address` is added to an address of the process to get an
 * ELF virtual address of the file that `pointer` describes. Returns 0 on success.
 */
INLINE long read_thread_pointer(u64 *value, const struct thread_pointer *pointer, u64 to_address)
{
    u64 base, words[2];
    void *at = (void *)(pointer->address - to_address);
    u32 kind = pointer->kind, key;
    if (kind == THREAD_GLOBAL)
        return bpf_probe_read_user(value, sizeof(*value), at);
    if (read_thread_base(&base))
        return 1;
    if (kind == THREAD_FIXED)
        return bpf_probe_read_user(value, sizeof(*value), (void *)(base + pointer->offset));
    if (kind == THREAD_SLOT)
        return bpf_probe_read_user(words, sizeof(words[0]), at) ||
               bpf_probe_read_user(value, sizeof(*value), (void *)(base + words[0]));
    if (kind == THREAD_DYNAMIC)
        return bpf_probe_read_user(words, sizeof(words), at) ||
               read_module_block(value, base, words[0], words[1] + pointer->offset, pointer->is_musl);
    if (kind == THREAD_KEY)
        return bpf_probe_read_user(&key, sizeof(key), at) ||
               (pointer->is_musl ? read_musl_key(value, base, key) : read_glibc_key(value, base, key));
    return 1;
}

#else
/* Returns 1: on machines other than x86-64, the layout of thread control blocks is not known. */
INLINE long read_thread_base(u64 *base) { return 1; }
INLINE long read_thread_pointer(u64 *value, const struct thread_pointer *pointer, u64 to_address) { return 1; }
#endif
