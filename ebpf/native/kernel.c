/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A fake kernel for tests (agent/src/unwind/tests/native.rs), which compile it to a library. With it, a plain process
 * without privileges runs the C code of the BPF programs, and unwinds the stack of a stopped child.
 *
 * It has one CPU, one task with a maple tree of its mappings, maps, two ring buffers, and a clock that advances by a
 * tick of 99 Hz per sample. The memory of the task is that of the child.
 */
#define _GNU_SOURCE
#include "../bpf/sampler.bpf.c"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))
#define EFAULT 14
#define EEXIST 17
#define TICK_NS 10101010
#define MAPPINGS_MAX 4096
#define NODES_MAX 1024
#define NODE_BYTES 256
#define RECORD_BYTES_MAX (sizeof(struct sample_header) + (KERNEL_FRAMES_MAX + USER_WORDS_MAX) * sizeof(u64) + \
                          LABELS_MAX * sizeof(struct label))
#define NEW_FILES_MAX 64

/* A declared map. If `declared` is 0, the map is an unwind table. */
struct map {
    const void *declared;
    u32 type, key_bytes, value_bytes, entries;
    u8 *is_used, *keys, *values;
};

#define LENGTH(field) (sizeof(*field) / sizeof(int))
#define MAP(name) { &name, LENGTH(name.type), sizeof(*name.key), sizeof(*name.value), LENGTH(name.max_entries) }

static struct map maps[] = {
    MAP(files),     MAP(files_met),          MAP(known_rules), MAP(known_programs), MAP(epoch),
    MAP(scratches), MAP(new_file_scratches), MAP(dropped),     MAP(programs),       MAP(runtimes),
    MAP(v8_programs), MAP(hotspot_processes), MAP(known_functions), MAP(woken),
};
static struct map *tables_by_number[TABLES_MAX];

static struct task_struct task;
static struct mm_struct mm;
static struct vm_area_struct areas[MAPPINGS_MAX];
static struct file mapped_files[MAPPINGS_MAX];
static struct inode inodes[MAPPINGS_MAX];
static struct super_block super_blocks[MAPPINGS_MAX];
static struct registers user_registers;
static u64 now_ns = 100000000000;

static u8 record[RECORD_BYTES_MAX];
static u64 record_bytes;
static struct new_file told[NEW_FILES_MAX];
static u64 told_bytes[NEW_FILES_MAX];
static u32 told_count;

static struct map *map_of(void *declared)
{
    for (u32 i = 0; i < sizeof(maps) / sizeof(*maps); i++) {
        if (maps[i].declared != declared)
            continue;
        if (!maps[i].values) {
            maps[i].is_used = calloc(maps[i].entries, 1);
            maps[i].keys = calloc(maps[i].entries, maps[i].key_bytes);
            maps[i].values = calloc(maps[i].entries, maps[i].value_bytes);
        }
        return &maps[i];
    }
    return declared;
}

static int is_hash(const struct map *map)
{
    return map->type == BPF_MAP_TYPE_HASH || map->type == BPF_MAP_TYPE_LRU_HASH;
}

/* Returns the index of a key; `entries` if the map does not have the key. */
static u32 index_of(const struct map *map, const void *key)
{
    if (!is_hash(map))
        return *(const u32 *)key < map->entries ? *(const u32 *)key : map->entries;
    u32 at = 0;
    while (at < map->entries) {
        if (map->is_used[at] && !memcmp(map->keys + (u64)at * map->key_bytes, key, map->key_bytes))
            break;
        at++;
    }
    return at;
}

void *bpf_map_lookup_elem(void *declared, const void *key)
{
    if (declared == &tables)
        return *(const u32 *)key < TABLES_MAX ? tables_by_number[*(const u32 *)key] : 0;
    struct map *map = map_of(declared);
    u32 at = index_of(map, key);
    return at < map->entries ? map->values + (u64)at * map->value_bytes : 0;
}

long bpf_map_update_elem(void *declared, const void *key, const void *value, u64 flags)
{
    struct map *map = map_of(declared);
    u32 at = index_of(map, key);
    if (at < map->entries && flags == BPF_NOEXIST)
        return -EEXIST;
    for (u32 i = 0; at == map->entries && i < map->entries; i++)
        at = map->is_used[i] ? at : i;
    /* The kernel replaces an entry that was not used lately. */
    if (at == map->entries && map->type == BPF_MAP_TYPE_LRU_HASH)
        at = 0;
    if (at == map->entries)
        abort();
    map->is_used[at] = 1;
    memcpy(map->keys + (u64)at * map->key_bytes, key, map->key_bytes);
    memcpy(map->values + (u64)at * map->value_bytes, value, map->value_bytes);
    return 0;
}

long bpf_map_delete_elem(void *declared, const void *key)
{
    struct map *map = map_of(declared);
    u32 at = index_of(map, key);
    if (at < map->entries)
        map->is_used[at] = 0;
    return 0;
}

u64 bpf_ktime_get_ns(void) { return now_ns; }
u64 bpf_ktime_get_boot_ns(void) { return now_ns; }
u32 bpf_get_prandom_u32(void) { return 0; }
u32 bpf_get_smp_processor_id(void) { return 0; }
u64 bpf_get_current_pid_tgid(void) { return (u64)task.pid << 32 | task.pid; }
struct task_struct *bpf_get_current_task_btf(void) { return &task; }
void *bpf_task_pt_regs(struct task_struct *of) { return of == &task ? &user_registers : 0; }
u64 bpf_ringbuf_query(void *ring, u64 what) { return what == BPF_RB_RING_SIZE ? 1 << 20 : 0; }

long bpf_get_current_comm(void *buffer, u32 bytes)
{
    memset(buffer, 0, bytes);
    return 0;
}

/* Returns no frames, because kernel stacks are not tested here. */
long bpf_get_stack(void *context, void *buffer, u32 bytes, u64 flags) { return 0; }

/* Reads all bytes or none. Bytes that cannot be read are zero. */
long bpf_probe_read_user(void *to, u32 bytes, const void *from)
{
    struct iovec local = { to, bytes }, remote = { (void *)from, bytes };
    if (process_vm_readv(task.pid, &local, 1, &remote, 1, 0) == (ssize_t)bytes)
        return 0;
    memset(to, 0, bytes);
    return -EFAULT;
}

/* Reads memory. Crashes if this file does not provide the memory, because such a read is a bug. */
long bpf_probe_read_kernel(void *to, u32 bytes, const void *from)
{
    if ((u64)from < 4096) {
        memset(to, 0, bytes);
        return -EFAULT;
    }
    memcpy(to, from, bytes);
    return 0;
}

/* Fails, because files have no names here. */
long bpf_probe_read_kernel_str(void *to, u32 bytes, const void *from) { return -EFAULT; }

long bpf_ringbuf_output(void *ring, void *data, u64 bytes, u64 flags)
{
    if (ring == &new_files && bytes <= sizeof(*told) && told_count < NEW_FILES_MAX) {
        memcpy(&told[told_count], data, bytes);
        told_bytes[told_count++] = bytes;
        return 0;
    }
    if (ring == &samples && bytes <= sizeof(record)) {
        memcpy(record, data, bytes);
        record_bytes = bytes;
        return 0;
    }
    abort();
}

long bpf_loop(u32 iterations_max, void *callback, void *callback_context, u64 flags)
{
    long (*step)(u32, void *) = callback;
    u32 i = 0;
    while (i < iterations_max && !step(i, callback_context))
        i++;
    return i;
}

/* A range of the tree: the addresses after the previous range, up to `last`. */
struct range {
    u64 last;
    void *slot;
};

/* Builds one level of the tree: fills nodes with the ranges in `parts`, and replaces these by one range for each node.
 * Returns the number of nodes. */
static u32 build_level(struct range *parts, u32 count, u32 type, u8 **nodes)
{
    u32 limits = type == TREE_GAPS ? GAPS_LIMITS : RANGE_LIMITS, made = 0;
    for (u32 first = 0; first < count; first += limits + 1) {
        u64 *words = (u64 *)*nodes;
        *nodes += NODE_BYTES;
        u32 used = count - first < limits + 1 ? count - first : limits + 1;
        for (u32 i = 0; i < used; i++) {
            /* The last slot of a full node has no limit. */
            if (i < limits)
                words[i] = parts[first + i].last;
            words[limits + i] = (u64)parts[first + i].slot;
        }
        parts[made++] = (struct range){ parts[first + used - 1].last, (void *)((u64)words | type << 3) };
    }
    return made;
}

/* Returns the root of a maple tree of the first `count` mappings, which are sorted by address. The lowest level has
 * leaves; all levels above it have nodes with gaps. */
static void *build_tree(u32 count)
{
    static u8 memory[NODES_MAX][NODE_BYTES] __attribute__((aligned(NODE_BYTES)));
    static struct range parts[2 * MAPPINGS_MAX + 1];
    u8 *nodes = memory[0];
    u32 used = 0;
    u64 next = 0;
    memset(memory, 0, sizeof(memory));
    for (u32 i = 0; i < count; i++) {
        if (next < areas[i].vm_start)
            parts[used++] = (struct range){ areas[i].vm_start - 1, 0 };
        parts[used++] = (struct range){ areas[i].vm_end - 1, &areas[i] };
        next = areas[i].vm_end;
    }
    parts[used++] = (struct range){ ~0ull, 0 };
    used = build_level(parts, used, TREE_LEAF_MAX, &nodes);
    while (used > 1)
        used = build_level(parts, used, TREE_GAPS, &nodes);
    return parts[0].slot;
}

/* A mapping as the test gives it. */
struct native_mapping {
    u64 start, end, offset;
    u64 inode; /* 0: no file */
    u64 bytes; /* size of the file */
    s64 modified_sec;
    u64 modified_nsec;
    u64 is_executable;
};

/* Sets the task that runs. The mappings must be sorted by address. Returns 0 if there are too many of them. */
EXPORT int native_set_task(int pid, const struct native_mapping *mappings, u32 count, u64 vdso)
{
    if (count > MAPPINGS_MAX)
        return 0;
    memset(areas, 0, sizeof(areas));
    mm.start_code = 0;
    for (u32 i = 0; i < count; i++) {
        const struct native_mapping *from = &mappings[i];
        super_blocks[i].s_dev = 1;
        inodes[i] = (struct inode){ .i_sb = &super_blocks[i], .i_ino = from->inode, .i_size = from->bytes };
        inodes[i].i_mtime_sec = from->modified_sec;
        inodes[i].i_mtime_nsec = from->modified_nsec;
        mapped_files[i].f_inode = &inodes[i];
        areas[i] = (struct vm_area_struct){ .vm_start = from->start, .vm_end = from->end };
        areas[i].vm_pgoff = from->offset >> 12;
        areas[i].vm_flags = from->is_executable ? VM_EXEC : 0;
        areas[i].vm_file = from->inode ? &mapped_files[i] : 0;
        if (from->is_executable && !mm.start_code)
            mm.start_code = from->start;
    }
    mm.mm_mt.ma_root = build_tree(count);
    mm.context.vdso = (void *)vdso;
    mm.context.ctx_id += 1;
    task = (struct task_struct){ .mm = &mm, .pid = pid, .group_leader = &task };
    return 1;
}

/* Copies `blocks` blocks from `bytes`, as the unwind table in slot `number`. */
EXPORT void native_set_table(u32 number, const u8 *bytes, u32 blocks)
{
    struct map *table = calloc(1, sizeof(*table));
    table->type = BPF_MAP_TYPE_ARRAY;
    table->key_bytes = sizeof(u32);
    table->value_bytes = BLOCK_BYTES;
    table->entries = blocks;
    table->values = malloc((u64)blocks * BLOCK_BYTES);
    memcpy(table->values, bytes, (u64)blocks * BLOCK_BYTES);
    tables_by_number[number % TABLES_MAX] = table;
}

EXPORT void native_set_file(const struct file_key *key, const struct file_entry *entry)
{
    bpf_map_update_elem(&files, key, entry, BPF_ANY);
}

/* Forgets all files, and sets the number of files that got a number before to `met`. */
EXPORT void native_forget_files(u32 met)
{
    u32 zero = 0;
    struct map *known = map_of(&files);
    memset(known->is_used, 0, known->entries);
    *(u32 *)bpf_map_lookup_elem(&epoch, &zero) += 1;
    *(u32 *)bpf_map_lookup_elem(&files_met, &zero) = met;
}

/* Sets the address of the control block of the running thread. */
EXPORT void native_set_thread_base(u64 base) { task.thread.fsbase = base; }

/* Sets the address of the first code of the program's executable. */
EXPORT void native_set_start_code(u64 start) { mm.start_code = start; }

EXPORT void native_set_runtime(u32 slot, const struct runtime *runtime)
{
    bpf_map_update_elem(&runtimes, &slot, runtime, BPF_ANY);
}

/* Sets the code heaps of the task that runs. */
EXPORT void native_set_hotspot(const struct hotspot_process *process)
{
    struct hotspot_key key = { .pid = task.pid };
    bpf_map_update_elem(&hotspot_processes, &key, process, BPF_ANY);
}

EXPORT void native_begin_epoch(void)
{
    u32 zero = 0;
    *(u32 *)bpf_map_lookup_elem(&epoch, &zero) += 1;
}

EXPORT u32 native_file_used(const struct file_key *key)
{
    struct file_entry *file = bpf_map_lookup_elem(&files, key);
    return file ? file->used : 0;
}

/* Reads a pointer that the running thread has for itself. Returns 0 if it cannot be read. */
EXPORT int native_read_thread_pointer(const struct thread_pointer *pointer, u64 *value)
{
    return !read_thread_pointer(value, pointer, 0);
}

/* Reads bytes of the task through a window that earlier reads may have filled. Returns 0 if they cannot be read. */
EXPORT int native_read_window(u64 address, u32 bytes, u32 side, u8 *to)
{
    static struct window window;
    if (!read_window(&window, address, bytes, side))
        return 0;
    for (u32 i = 0; i < bytes; i++)
        to[i] = window_byte(&window, address + i);
    for (u32 i = 0; i + sizeof(u64) <= bytes; i += sizeof(u64))
        if (window_word(&window, address + i) != *(u64 *)(to + i) ||
            window_int(&window, address + i) != *(u32 *)(to + i))
            return 0;
    return 1;
}

/* Removes one report of a new file. Returns its length, and sets `to` to the report; returns 0 if there is no
 * report. */
EXPORT u64 native_new_file(const u8 **to)
{
    if (!told_count)
        return 0;
    *to = (const u8 *)&told[--told_count];
    return told_bytes[told_count];
}

/* Takes a sample of the task with these registers. Returns the length of the record, and sets `to` to the record. */
EXPORT u64 native_sample(const struct registers *registers, const u8 **to)
{
    struct perf_event_context context = { .registers = *registers };
    /* In a system call, the clock interrupts the kernel. */
    if (IS_SYSCALL(registers))
        context.registers = (struct registers){ .ip = ~0ull << 40, .cs = 0x10 };
    user_registers = *registers;
    now_ns += TICK_NS;
    record_bytes = 0;
    sample_cpu(&context);
    *to = record;
    return record_bytes;
}
