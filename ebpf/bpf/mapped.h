/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The mapping of an address of the running task: the file's number and its unwind table.
 *
 * A lookup from scratch reads about twenty cache lines that are in no cache. So each CPU caches the last mappings of
 * the last programs.
 *
 * A cached mapping is valid if the kernel counts the changes of a program's mappings (Linux 6.4, x86) and there were no
 * changes. If the kernel does not count them, the mapping is valid if the program's tree still has it, of the same
 * file. Memory that the kernel freed may keep its content for a while or hold something else, so cached addresses are
 * always checked again.
 */
#pragma once

#include "new_file.h"
#include "tables.h"
#include "types.h"
#include "vma.h"

/* The mapping in which a frame lies. */
struct mapped {
    u64 start;
    u64 end;
    u64 to_offset;  /* added to an address, gives the offset in the file */
    u64 to_address; /* added to an address, gives the ELF virtual address */
    u32 number;     /* number of the file; 0: none */
    u32 table;      /* slot in `tables`; NO_TABLE: none */
    struct table_layout layout;
    u32 go;    /* see goroutine.h */
    u32 epoch; /* epoch of the lookup */
};

#define NO_TABLE 0xffffffff

#define KNOWN_PROGRAMS_BITS 6
#define KNOWN_PROGRAMS_PER_CPU (1 << KNOWN_PROGRAMS_BITS)
#define KNOWN_MAPPINGS 8

struct known_mapping {
    u64 vma;
    u64 file;
    struct file_key key;
    struct mm_state state; /* state of the memory at the lookup; its id is 0 if the kernel does not report it */
    struct mapped mapped;
};

struct known_program {
    u64 mm;
    u64 next; /* index of the entry that is replaced next */
    /* Starts and ends of the mappings have their own arrays, because every lookup scans them. */
    u64 start[KNOWN_MAPPINGS];
    u64 end[KNOWN_MAPPINGS];
    struct known_mapping mappings[KNOWN_MAPPINGS];
};

/* KNOWN_PROGRAMS_PER_CPU entries for each CPU; user space sets the size. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, KNOWN_PROGRAMS_PER_CPU);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct known_program);
} known_programs SEC(".maps");

INLINE int is_same_file(const struct file_key *a, const struct file_key *b)
{
    return a->inode == b->inode && a->size == b->size && a->modified_sec == b->modified_sec &&
           a->modified_nsec == b->modified_nsec && a->device == b->device && a->generation == b->generation;
}

INLINE struct known_program *known_program_at(u64 mm)
{
    u32 at = bpf_get_smp_processor_id() << KNOWN_PROGRAMS_BITS | mm * HASH_FACTOR >> (64 - KNOWN_PROGRAMS_BITS);
    return bpf_map_lookup_elem(&known_programs, &at);
}

/* Looks an address up in the cache. Returns 0 if no valid mapping of it is cached. Not inlined, for the verifier. */
__attribute__((noinline)) int find_cached(struct mapped *mapped, u64 mm, u64 address)
{
    struct mapping mapping;
    struct file_key key = {};
    struct mm_state state;
    u64 tree;
    u32 at = KNOWN_MAPPINGS;
    struct known_program *program = known_program_at(mm);
    if (!mapped || !program || program->mm != mm)
        return 0;
    for (u32 i = 0; i < KNOWN_MAPPINGS; i++)
        at -= step_if(at - i, (s64)(address - program->start[i]) | (s64)(program->end[i] - 1 - address));
    if (at >= KNOWN_MAPPINGS)
        return 0;
    struct known_mapping *known = &program->mappings[at];
    if (known->mapped.epoch != current_epoch())
        return 0;
    int has_state = read_mm_state(mm, &state);
    if (has_state && state.id == known->state.id && state.changes == known->state.changes) {
        *mapped = known->mapped;
        return 1;
    }
    if (READ_FIELD(tree, (struct mm_struct *)mm, mm_mt.ma_root) || find_vma(tree, address) != known->vma ||
        !read_mapping(known->vma, address, &mapping))
        return 0;
    if (mapping.start != known->mapped.start || mapping.end != known->mapped.end || mapping.file != known->file ||
        mapping.offset - mapping.start != known->mapped.to_offset)
        return 0;
    /* A library that replaces another often gets the same kernel memory, too. */
    if (!read_key(mm, &mapping, &key) != !known->mapped.number || !is_same_file(&key, &known->key))
        return 0;
    if (has_state)
        known->state = state;
    *mapped = known->mapped;
    return 1;
}

/* Returns the cache entry for a mapping: the entry that the mapping had before, or else the oldest entry. */
INLINE struct known_mapping *entry_for(struct known_program *program, u64 mm, const struct mapped *mapped)
{
    if (program->mm != mm) {
        for (u32 i = 0; i < KNOWN_MAPPINGS; i++)
            program->end[i] = 0;
        program->mm = mm;
    }
    u32 at = program->next++ % KNOWN_MAPPINGS;
    for (u32 i = 0; i < KNOWN_MAPPINGS; i++) {
        at -= step_if(at - i, -(s64)(program->start[i] ^ mapped->start));
        /* Entries that overlap the mapping are outdated. */
        if (program->start[i] < mapped->end && mapped->start < program->end[i])
            program->end[i] = 0;
    }
    program->start[at % KNOWN_MAPPINGS] = mapped->start;
    program->end[at % KNOWN_MAPPINGS] = mapped->end;
    return &program->mappings[at % KNOWN_MAPPINGS];
}

/* Sets the number of the mapped file, and its table if it has one. */
INLINE void map_file(struct mapped *mapped, const struct mapping *mapping, const struct file_key *key, u32 pid,
                     u64 tree)
{
    struct file_entry *file = bpf_map_lookup_elem(&files, key);
    if (!file) {
        mapped->number = number_file(key, mapping, pid, tree);
        return;
    }
    mapped->number = file->number;
    /* The field is read once, because another CPU may change it. */
    u32 tries = *(volatile u32 *)&file->unread;
    if (tries)
        report_unread(file, tries, mapped->number, key, mapping, pid, tree);
    if (!file->has_table)
        return;
    u32 used = USED_AT(bpf_ktime_get_ns());
    /* The field is written only if it changes, because all CPUs read this cache line. */
    if (file->used != used)
        file->used = used;
    for (int i = 0; i < FILE_PARTS; i++) {
        struct file_part *part = &file->parts[i];
        /* The part with code is first, because one page of it may also belong to the part before it in the file. */
        if (mapped->table == NO_TABLE && part->start <= mapping->offset && mapping->offset < part->end) {
            mapped->table = file->table;
            mapped->layout = file->layout;
            mapped->go = file->go;
            mapped->to_address = mapped->to_offset + part->bias;
        }
    }
}

/* Looks an address up from scratch. Returns 0 if no executable mapping holds it. Not inlined, for the verifier. */
__attribute__((noinline)) int find_mapped(struct mapped *mapped, u64 mm, u64 address, u32 pid)
{
    struct mapping mapping;
    struct file_key key = {};
    struct mm_state state = {};
    u64 tree;
    if (!mapped || READ_FIELD(tree, (struct mm_struct *)mm, mm_mt.ma_root))
        return 0;
    mapped->epoch = current_epoch();
    if (!read_mm_state(mm, &state))
        state.id = 0;
    u64 vma = find_vma(tree, address);
    if (!read_mapping(vma, address, &mapping))
        return 0;
    mapped->start = mapping.start;
    mapped->end = mapping.end;
    mapped->to_offset = mapping.offset - mapping.start;
    mapped->number = 0;
    mapped->table = NO_TABLE;
    mapped->go = 0;
    int has_file = read_key(mm, &mapping, &key);
    if (has_file)
        map_file(mapped, &mapping, &key, pid, tree);
    struct known_program *program = known_program_at(mm);
    /* A file without a table is not cached, because it may get one. */
    if (!program || (has_file && mapped->table == NO_TABLE))
        return 1;
    struct known_mapping *known = entry_for(program, mm, mapped);
    known->vma = vma;
    known->file = mapping.file;
    known->key = key;
    known->state = state;
    known->mapped = *mapped;
    return 1;
}

/* Finds the mapping of an address. Returns 0 if no executable mapping holds it. `mapped` holds the last result. */
INLINE int map_address(struct mapped *mapped, u64 mm, u64 address, u32 pid)
{
    if (mapped->start <= address && address < mapped->end)
        return 1;
    if (find_cached(mapped, mm, address))
        return 1;
    mapped->end = 0;
    return find_mapped(mapped, mm, address, pid);
}
