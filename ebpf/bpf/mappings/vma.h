/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the file that the running task has mapped at an address, in the kernel's own tree of mappings (since Linux
 * 6.1). So stacks are unwound even in processes that user space does not know yet.
 *
 * The tree is read without its lock. Nodes are freed only after a grace period, which lasts at least as long as a BPF
 * program runs. Every result is checked: a mapping counts only if the address lies in it. If another thread changes
 * mappings at this moment, the stack may end early.
 *
 * A node of the tree is 256 bytes long and aligned to 256 bytes. The low bits of a pointer to it are its type
 * (lib/maple_tree.c).
 */
#pragma once

#include "../types.h"

#define TREE_LEVELS_MAX 8
#define TREE_NODE_MASK 255ull
#define TREE_TYPE(pointer) ((pointer) >> 3 & 15)
#define TREE_LEAF_MAX 1
#define TREE_RANGE 2
#define TREE_GAPS 3
/* Number of limits that separate the slots of a node, for each of two types of nodes. */
#define RANGE_LIMITS 15
#define GAPS_LIMITS 9

struct maple_range_64 {
    unsigned long pivot[RANGE_LIMITS];
    void *slot[RANGE_LIMITS + 1];
} RELOCATED;

struct maple_arange_64 {
    unsigned long pivot[GAPS_LIMITS];
    void *slot[GAPS_LIMITS + 1];
} RELOCATED;

struct super_block {
    unsigned int s_dev;
} RELOCATED;

struct inode {
    struct super_block *i_sb;
    unsigned long i_ino;
    u64 i_size;
    unsigned int i_generation;
    s64 i_mtime_sec;
    u32 i_mtime_nsec;
} RELOCATED;

struct timespec64 {
    s64 tv_sec;
    long tv_nsec;
} RELOCATED;

/* Fields of struct inode in Linux 6.6 to 6.10. */
struct inode___6_6 {
    struct timespec64 __i_mtime;
} RELOCATED;
/* Fields of struct inode before Linux 6.6. */
struct inode___6_1 {
    struct timespec64 i_mtime;
} RELOCATED;

struct dentry;
struct vfsmount;

struct path {
    struct vfsmount *mnt;
    struct dentry *dentry;
} RELOCATED;

struct file {
    struct inode *f_inode;
    struct path f_path;
} RELOCATED;

struct vm_area_struct {
    unsigned long vm_start;
    unsigned long vm_end;
    unsigned long vm_flags;
    unsigned long vm_pgoff;
    struct file *vm_file;
    void *anon_vma;
} RELOCATED;

#define VM_EXEC 4

/* Identity of a file in one state: device, inode and its generation, size and modification time. All zeros for the
 * vdso. */
struct file_key {
    u64 inode;
    u64 size;
    s64 modified_sec;
    u32 modified_nsec;
    u32 device;
    u32 generation;
    u32 zero;
};

/* An executable mapping. */
struct mapping {
    u64 start;
    u64 end;
    u64 offset; /* offset of `start` in the file */
    u64 file;   /* struct file; NULL for memory without a file */
};

/* Finds the mapping of an address in the tree with root `entry`. Returns the address of its vm_area_struct; 0 if there
 * is none. */
__attribute__((noinline)) u64 find_vma(u64 entry, u64 address)
{
    u64 limits[RANGE_LIMITS];
    for (int level = 0; level < TREE_LEVELS_MAX; level++) {
        u64 node = entry & ~TREE_NODE_MASK;
        u32 type = TREE_TYPE(entry);
        u32 count = type == TREE_GAPS ? GAPS_LIMITS : RANGE_LIMITS;
        struct maple_range_64 *range = (void *)node;
        struct maple_arange_64 *gaps = (void *)node;
        if (type == 0 || type > TREE_GAPS || bpf_probe_read_kernel(limits, sizeof(limits), &range->pivot))
            return 0;
        u32 slot = 0;
        /* Limits ascend, and zeros follow the last limit. A limit is odd, because it is the address of the last byte of
         * a page. So the halves, which fit an s64, compare as the whole numbers do. */
        for (u32 i = 0; i < RANGE_LIMITS; i++) {
            s64 limit = limits[i] >> 1;
            slot += step_if(1, ~((limit - (s64)(address >> 1)) & -limit & ((s64)i - count)));
        }
        void *at = type == TREE_GAPS ? (void *)&gaps->slot : (void *)&range->slot;
        if (bpf_probe_read_kernel(&entry, sizeof(entry), at + slot * sizeof(u64)))
            return 0;
        if (type <= TREE_LEAF_MAX)
            return entry;
    }
    return 0;
}

/* Reads a mapping. Returns 0 if it is not executable or does not hold the address. */
INLINE int read_mapping(u64 vma_at, u64 address, struct mapping *found)
{
    struct vm_area_struct *vma = (void *)vma_at;
    u64 page, flags;
    if (!vma || READ_FIELD(found->start, vma, vm_start) || READ_FIELD(found->end, vma, vm_end))
        return 0;
    if (address < found->start || address >= found->end)
        return 0;
    if (READ_FIELD(flags, vma, vm_flags) || !(flags & VM_EXEC))
        return 0;
    if (READ_FIELD(page, vma, vm_pgoff) || READ_FIELD(found->file, vma, vm_file))
        return 0;
    found->offset = page << 12;
    return 1;
}

INLINE int read_mtime(struct inode *inode, struct file_key *key)
{
    struct timespec64 time;
    struct inode___6_6 *of_6_6 = (void *)inode;
    struct inode___6_1 *of_6_1 = (void *)inode;
    if (FIELD_EXISTS(inode->i_mtime_sec))
        return !READ_FIELD(key->modified_sec, inode, i_mtime_sec) &&
               !READ_FIELD(key->modified_nsec, inode, i_mtime_nsec);
    if (FIELD_EXISTS(of_6_6->__i_mtime) ? READ_FIELD(time, of_6_6, __i_mtime) : READ_FIELD(time, of_6_1, i_mtime))
        return 0;
    key->modified_sec = time.tv_sec;
    key->modified_nsec = time.tv_nsec;
    return 1;
}

/* Returns 1 if the mapping is the vdso. */
INLINE int is_vdso(u64 mm, const struct mapping *mapping)
{
    u64 vdso;
    return !mapping->file && !READ_FIELD(vdso, (struct mm_struct *)mm, context.vdso) && vdso == mapping->start;
}

/* Reads the key of the mapped file. Returns 0 if there is no file. The caller must set the key to all zeros. */
INLINE int read_key(u64 mm, const struct mapping *mapping, struct file_key *key)
{
    struct inode *inode;
    struct super_block *super_block;
    if (!mapping->file)
        return is_vdso(mm, mapping);
    return !READ_FIELD(inode, (struct file *)mapping->file, f_inode) && !READ_FIELD(key->inode, inode, i_ino) &&
           !READ_FIELD(key->size, inode, i_size) && read_mtime(inode, key) &&
           !READ_FIELD(key->generation, inode, i_generation) && !READ_FIELD(super_block, inode, i_sb) &&
           !READ_FIELD(key->device, super_block, s_dev);
}

/* Identity of a program's memory, and the number of changes of its mappings. While both are the same, no mapping has
 * changed. */
struct mm_state {
    u64 id;
    u64 changes;
};

/* Reads the state of a program's memory. Returns 0 if the kernel does not count changes, or if the mappings are being
 * changed. */
INLINE int read_mm_state(u64 mm_at, struct mm_state *state)
{
    struct mm_struct *mm = (void *)mm_at;
    struct mm_struct___6_12 *of_6_12 = (void *)mm_at;
    u32 changes;
    if (!FIELD_EXISTS(mm->context.ctx_id) || READ_FIELD(state->id, mm, context.ctx_id))
        return 0;
    if (FIELD_EXISTS(mm->mm_lock_seq.sequence)) {
        /* The counter is odd during a change. */
        if (READ_FIELD(changes, mm, mm_lock_seq.sequence) || changes & 1)
            return 0;
    } else if (!FIELD_EXISTS(of_6_12->mm_lock_seq) || READ_FIELD(changes, of_6_12, mm_lock_seq)) {
        return 0;
    }
    state->changes = changes;
    return 1;
}
