/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads two things of the goroutine that a thread of a Go program runs: its labels (as pprof.Do sets them), and the
 * position at which its stack had to grow.
 *
 * Go keeps a pointer to a goroutine in the thread's local storage. It points to the goroutine that runs, or, while the
 * thread is on a stack of Go's runtime, to a goroutine of the runtime. Each of them points to Go's description of the
 * thread, and this description points to the goroutine that runs.
 *
 * The offsets depend on the program's version of Go, and come from user space with the file
 * (agent/src/names/go/labels.rs). The program may change all of these structures while BPF reads them. User space
 * therefore checks that labels are text.
 */
#pragma once

#include "../record.h"
#include "../scratch.h"
#include "../types.h"

/* Saved stack pointer and program counter of a goroutine. */
struct go_position {
    u64 sp;
    u64 pc;
};

#ifdef TARGET_X86_64

/* Number of bytes by which the pointer to the goroutine lies below the base of the thread's local storage. */
#define GO_GOROUTINE_BELOW 8
#define GO_THREAD 48 /* offset in a goroutine: its thread */
#define GO_SAVED 56  /* offset in a goroutine: struct go_position */

/* Fields of a Go program's description, which user space packs into one u32: two offsets in bytes, and the form of the
 * labels. The u32 is 0 if the program is not a Go program. */
#define GO_CURRENT(go) ((go) & 0xfff)      /* offset in a thread: the goroutine that it runs */
#define GO_LABELS(go) ((go) >> 12 & 0xfff) /* offset in a goroutine: its labels */
#define GO_LABELS_ARE_MAP(go) ((go) >> 31) /* 1: a map, 0: a list */

struct go_string {
    u64 text;
    u64 bytes;
};

struct go_label {
    struct go_string name;
    struct go_string value;
};

struct go_list {
    u64 first;
    u64 count;
};

struct go_map {
    u64 count;
    u8 flags;
    u8 buckets_log2;
    u8 other[6];
    u64 buckets;
};

/* Layout of a map bucket: one state byte per entry, the names, the values, and a pointer to an overflow bucket. */
#define GO_BUCKET_ENTRIES 8
#define GO_BUCKET_NAMES 8
#define GO_BUCKET_VALUES (GO_BUCKET_NAMES + GO_BUCKET_ENTRIES * sizeof(struct go_string))
#define GO_BUCKET_BYTES (GO_BUCKET_VALUES + GO_BUCKET_ENTRIES * sizeof(struct go_string) + 8)
#define GO_ENTRY_USED 5 /* smallest state of an entry that is in use */

/* Appends a label after the frames. A value that is too long is truncated. A name that is too long is skipped, because
 * it could become equal to another. */
INLINE void push_label(struct scratch *scratch, const struct go_label *label)
{
    u64 words = scratch->header.kernel_frames + scratch->header.user_words;
    u64 labels = scratch->header.labels;
    u64 name_bytes = label->name.bytes, value_bytes = label->value.bytes;
    if (words > KERNEL_FRAMES_MAX + USER_WORDS_MAX || labels >= LABELS_MAX || !name_bytes ||
        name_bytes > LABEL_NAME_BYTES)
        return;
    struct label *to = (void *)&scratch->frames[words] + labels * sizeof(*to);
    if (value_bytes > LABEL_VALUE_BYTES)
        value_bytes = LABEL_VALUE_BYTES;
    if (bpf_probe_read_user(to->name, name_bytes, (void *)label->name.text) ||
        bpf_probe_read_user(to->value, value_bytes, (void *)label->value.text))
        return;
    to->name_bytes = name_bytes;
    to->value_bytes = value_bytes;
    scratch->header.labels = labels + 1;
}

/* Reads labels that are a list: Go 1.24 and later. */
__attribute__((noinline)) int read_label_list(struct scratch *scratch, u64 labels)
{
    struct go_list list;
    struct go_label label;
    if (!scratch || bpf_probe_read_user(&list, sizeof(list), (void *)labels))
        return 0;
    for (u32 i = 0; i < LABELS_MAX && i < list.count; i++) {
        if (bpf_probe_read_user(&label, sizeof(label), (void *)(list.first + i * sizeof(label))))
            break;
        push_label(scratch, &label);
    }
    return 0;
}

/* Reads labels that are a map: Go 1.23 and earlier. Of a large map, only the first two buckets are read. */
__attribute__((noinline)) int read_label_map(struct scratch *scratch, u64 labels)
{
    u64 at;
    struct go_map map;
    struct go_label label;
    u8 taken[2 * GO_BUCKET_ENTRIES];
    if (!scratch || bpf_probe_read_user(&at, sizeof(at), (void *)labels))
        return 0;
    if (bpf_probe_read_user(&map, sizeof(map), (void *)at) || !map.count)
        return 0;
    for (u32 i = 0; i < sizeof(taken); i++) {
        u64 bucket = map.buckets + i / GO_BUCKET_ENTRIES * GO_BUCKET_BYTES;
        u64 entry = i % GO_BUCKET_ENTRIES;
        u8 state;
        if (i >= GO_BUCKET_ENTRIES && !map.buckets_log2)
            break;
        if (bpf_probe_read_user(&state, sizeof(state), (void *)(bucket + entry)) || state < GO_ENTRY_USED)
            continue;
        u64 name = bucket + GO_BUCKET_NAMES + entry * sizeof(struct go_string);
        u64 value = bucket + GO_BUCKET_VALUES + entry * sizeof(struct go_string);
        if (bpf_probe_read_user(&label.name, sizeof(label.name), (void *)name) ||
            bpf_probe_read_user(&label.value, sizeof(label.value), (void *)value))
            break;
        push_label(scratch, &label);
    }
    return 0;
}

/*
 * Returns the address of the goroutine that a thread runs; 0 if there is none. `base` is the base of the thread's local
 * storage, and `go` describes the program. Sets `on` to the address of the goroutine on whose stack the thread is: the
 * returned goroutine, or one of the runtime.
 */
INLINE u64 find_goroutine(u64 base, u32 go, u64 *on)
{
    u64 thread, goroutine;
    if (bpf_probe_read_user(on, sizeof(*on), (void *)(base - GO_GOROUTINE_BELOW)) ||
        bpf_probe_read_user(&thread, sizeof(thread), (void *)(*on + GO_THREAD)) ||
        bpf_probe_read_user(&goroutine, sizeof(goroutine), (void *)(thread + GO_CURRENT(go))))
        return 0;
    return goroutine;
}

/* Appends the labels of the current goroutine. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int find_go_labels(struct scratch *scratch, u64 base, u32 go)
{
    u64 on, labels, goroutine = find_goroutine(base, go, &on);
    if (!scratch || !goroutine ||
        bpf_probe_read_user(&labels, sizeof(labels), (void *)(goroutine + GO_LABELS(go))) || !labels)
        return 0;
    return GO_LABELS_ARE_MAP(go) ? read_label_map(scratch, labels) : read_label_list(scratch, labels);
}

/*
 * Reads the position that the runtime saved for a goroutine before it went to its own stack, to make the goroutine's
 * stack larger. Returns 0 if the thread runs no goroutine, or is on the goroutine's stack.
 */
__attribute__((noinline)) int find_growing(struct go_position *position, u64 base, u32 go)
{
    u64 on, goroutine = find_goroutine(base, go, &on);
    return position && goroutine && goroutine != on &&
           !bpf_probe_read_user(position, sizeof(*position), (void *)(goroutine + GO_SAVED));
}

INLINE int read_growing(struct go_position *position, struct task_struct *task, u32 go)
{
    u64 base;
    return go && !READ_FIELD(base, task, thread.fsbase) && find_growing(position, base, go);
}

INLINE void read_go_labels(struct scratch *scratch, struct task_struct *task, u32 go)
{
    u64 base;
    if (!READ_FIELD(base, task, thread.fsbase))
        find_go_labels(scratch, base, go);
}

#else
/* Returns 0: on machines other than x86-64, the layout of goroutines is not known. */
INLINE int read_growing(struct go_position *position, struct task_struct *task, u32 go) { return 0; }
INLINE void read_go_labels(struct scratch *scratch, struct task_struct *task, u32 go) {}
#endif
