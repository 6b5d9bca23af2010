/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Declarations of the kernel's interface, as far as the programs use it. With them, the programs compile without any
 * header of the kernel or of libbpf:
 * - integer types and map declarations;
 * - helpers, by their number in the kernel's stable enum bpf_func_id;
 * - fields of kernel structs, which are relocated when the program is loaded (CO-RE), so only their names count.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* Fields of a map's definition, as the loader reads them from BTF: integers are array lengths, types are pointers. */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

enum {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
    BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
    BPF_F_NO_PREALLOC = 1,
    BPF_F_INNER_MAP = 0x1000,
};

enum {
    BPF_ANY = 0,
    BPF_NOEXIST = 1,
    BPF_RB_NO_WAKEUP = 1,
    BPF_RB_FORCE_WAKEUP = 2,
    BPF_RB_AVAIL_DATA = 0,
    BPF_RB_RING_SIZE = 1,
};

#ifdef VARVE_NATIVE
#include "../native/helpers.h"
#else
/* The helpers' argument types only matter to the verifier, which checks the registers itself. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_get_current_comm)(void *buffer, u32 bytes) = (void *)16;
static long (*const bpf_get_stack)(void *context, void *buffer, u32 bytes, u64 flags) = (void *)67;
static long (*const bpf_probe_read_user)(void *to, u32 bytes, const void *from) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *to, u32 bytes, const void *from) = (void *)115;
static u64 (*const bpf_ktime_get_boot_ns)(void) = (void *)125;
static long (*const bpf_ringbuf_output)(void *ring, void *data, u64 bytes, u64 flags) = (void *)130;
static u64 (*const bpf_ringbuf_query)(void *ring, u64 what) = (void *)134;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;
static void *(*const bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const bpf_loop)(u32 iterations_max, void *callback, void *callback_context, u64 flags) = (void *)181;

#define RELOCATED __attribute__((preserve_access_index))
/* 1 if the struct has this field in the running kernel. Code for a missing field costs nothing: the verifier removes
 * code under a condition that is never true. */
#define FIELD_EXISTS(field) __builtin_preserve_field_info(field, 2)
#define FIELD_OFFSET(field) __builtin_preserve_field_info(field, 0)
#endif

/* Reads a field of a kernel struct into the variable `to`. Returns 0 on success. */
#define READ_FIELD(to, pointer, field) bpf_probe_read_kernel(&(to), sizeof(to), &(pointer)->field)

struct maple_tree {
    void *ma_root;
} RELOCATED;

typedef struct {
    u64 ctx_id; /* unique among all memories since boot; x86 */
    void *vdso;
} RELOCATED mm_context_t;

struct seqcount {
    unsigned int sequence;
} RELOCATED;

struct mm_struct {
    struct maple_tree mm_mt;
    unsigned long start_code;
    struct seqcount mm_lock_seq;
    mm_context_t context;
} RELOCATED;

/* Fields of struct mm_struct in Linux 6.4 to 6.12. */
struct mm_struct___6_12 {
    int mm_lock_seq;
} RELOCATED;

struct thread_struct {
    unsigned long fsbase;
} RELOCATED;

struct task_struct {
    struct mm_struct *mm;
    struct thread_struct thread;
    unsigned int flags;
    unsigned int __state;
    int pid;
    u64 self_exec_id;
    u64 start_boottime;
    struct task_struct *group_leader;
} RELOCATED;

/* Bits of task_struct.__state of a waiting task: interruptible or not, but neither stopped nor dead. */
#define TASK_WAITS 0x00000003
/* Bits of task_struct.flags. */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

/* Factor for hashing: 2^64 divided by the golden ratio. The upper bits of a product with it are well distributed. */
#define HASH_FACTOR 0x9e3779b97f4a7c15ull

/* Returns `step` if `fits` is not negative, and 0 otherwise. Branchless, because the verifier follows both ways of
 * every branch. */
INLINE u32 step_if(u32 step, s64 fits)
{
    asm volatile("" : "+r"(fits));
    return step & ~(u32)(fits >> 63);
}
