/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The goroutine that a thread of a Go program runs: found as Go's own code finds it, in the thread's local storage, and from a stack of the
 * runtime's by its thread's current one. It has labels (runtime/pprof's, such as pprof.Do sets), and where it was when its stack had to grow.
 *
 * Where what is by the program's version; user space says so with the file (agent/src/go/labels.rs). The program changes all of it while it
 * is read: what is read is copied, and is text or is not believed (user space looks).
 */
#pragma once

#include "record.h"

/* Where a goroutine left its stack. */
struct go_place {
    u64 sp;
    u64 pc;
};

#ifdef TARGET_X86_64

/* Before what the thread's register says. */
#define GO_GOROUTINE_BEFORE 8
#define GO_THREAD 48 /* of a goroutine: its thread */
#define GO_SAVED 56  /* of a goroutine: struct go_place */

/* What user space says of a Go program: offsets in bytes, and which kind of labels it has; 0 is no Go program. */
#define GO_CURRENT(go) ((go) & 0xfff)       /* of a thread: the goroutine that it runs */
#define GO_LABELS(go) ((go) >> 12 & 0xfff)  /* of a goroutine */
#define GO_LABELS_ARE_MAP(go) ((go) >> 31)

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

/* A bucket has a byte for each of its places, the names, the values, and where it goes on. */
#define GO_BUCKET_PLACES 8
#define GO_BUCKET_NAMES 8
#define GO_BUCKET_VALUES (GO_BUCKET_NAMES + GO_BUCKET_PLACES * sizeof(struct go_string))
#define GO_BUCKET_BYTES (GO_BUCKET_VALUES + GO_BUCKET_PLACES * sizeof(struct go_string) + 8)
#define GO_PLACE_TAKEN 5

/* Appends a label behind the frames; a longer value is cut, and a longer name would be another's. */
INLINE void push_label(struct scratch *scratch, const struct go_label *label)
{
    u64 frames = scratch->header.kernel_frames + scratch->header.user_frames;
    u64 labels = scratch->header.labels;
    u64 name_bytes = label->name.bytes, value_bytes = label->value.bytes;
    if (frames > KERNEL_FRAMES_MAX + USER_FRAMES_MAX || labels >= LABELS_MAX || !name_bytes ||
        name_bytes > LABEL_NAME_BYTES)
        return;
    struct label *to = (void *)&scratch->frames[frames] + labels * sizeof(*to);
    if (value_bytes > LABEL_VALUE_BYTES)
        value_bytes = LABEL_VALUE_BYTES;
    if (bpf_probe_read_user(to->name, name_bytes, (void *)label->name.text) ||
        bpf_probe_read_user(to->value, value_bytes, (void *)label->value.text))
        return;
    to->name_bytes = name_bytes;
    to->value_bytes = value_bytes;
    scratch->header.labels = labels + 1;
}

/* Since Go 1.24. */
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

/* Until Go 1.23: of a map with more labels than fit here, its first buckets. */
__attribute__((noinline)) int read_label_map(struct scratch *scratch, u64 labels)
{
    u64 at;
    struct go_map map;
    struct go_label label;
    u8 taken[2 * GO_BUCKET_PLACES];
    if (!scratch || bpf_probe_read_user(&at, sizeof(at), (void *)labels))
        return 0;
    if (bpf_probe_read_user(&map, sizeof(map), (void *)at) || !map.count)
        return 0;
    for (u32 i = 0; i < sizeof(taken); i++) {
        u64 bucket = map.buckets + i / GO_BUCKET_PLACES * GO_BUCKET_BYTES, place = i % GO_BUCKET_PLACES;
        u8 state;
        if (i >= GO_BUCKET_PLACES && !map.buckets_log2)
            break;
        if (bpf_probe_read_user(&state, sizeof(state), (void *)(bucket + place)) || state < GO_PLACE_TAKEN)
            continue;
        u64 name = bucket + GO_BUCKET_NAMES + place * sizeof(struct go_string);
        u64 value = bucket + GO_BUCKET_VALUES + place * sizeof(struct go_string);
        if (bpf_probe_read_user(&label.name, sizeof(label.name), (void *)name) ||
            bpf_probe_read_user(&label.value, sizeof(label.value), (void *)value))
            break;
        push_label(scratch, &label);
    }
    return 0;
}

/*
 * The goroutine of the thread whose local storage ends at `base`, 0: none, and whose stack the thread is on: that or the runtime's. Its program is
 * told by `go`.
 */
INLINE u64 find_goroutine(u64 base, u32 go, u64 *on)
{
    u64 thread, goroutine;
    if (bpf_probe_read_user(on, sizeof(*on), (void *)(base - GO_GOROUTINE_BEFORE)) ||
        bpf_probe_read_user(&thread, sizeof(thread), (void *)(*on + GO_THREAD)) ||
        bpf_probe_read_user(&goroutine, sizeof(goroutine), (void *)(thread + GO_CURRENT(go))))
        return 0;
    return goroutine;
}

/* A function of its own for the verifier. */
__attribute__((noinline)) int find_go_labels(struct scratch *scratch, u64 base, u32 go)
{
    u64 on, labels, goroutine = find_goroutine(base, go, &on);
    if (!scratch || !goroutine ||
        bpf_probe_read_user(&labels, sizeof(labels), (void *)(goroutine + GO_LABELS(go))) || !labels)
        return 0;
    return GO_LABELS_ARE_MAP(go) ? read_label_map(scratch, labels) : read_label_list(scratch, labels);
}

/* Where the goroutine goes on for which the runtime, on its own stack, makes a larger one; says no if there is none. */
__attribute__((noinline)) int find_growing(struct go_place *place, u64 base, u32 go)
{
    u64 on, goroutine = find_goroutine(base, go, &on);
    return place && goroutine && goroutine != on &&
           !bpf_probe_read_user(place, sizeof(*place), (void *)(goroutine + GO_SAVED));
}

INLINE int read_growing(struct go_place *place, struct task_struct *task, u32 go)
{
    u64 base;
    return go && !READ_FIELD(base, task, thread.fsbase) && find_growing(place, base, go);
}

INLINE void read_go_labels(struct scratch *scratch, struct task_struct *task, u32 go)
{
    u64 base;
    if (!READ_FIELD(base, task, thread.fsbase))
        find_go_labels(scratch, base, go);
}

#else
/* Where another machine's programs keep their goroutine is not written down here. */
INLINE int read_growing(struct go_place *place, struct task_struct *task, u32 go) { return 0; }
INLINE void read_go_labels(struct scratch *scratch, struct task_struct *task, u32 go) {}
#endif
