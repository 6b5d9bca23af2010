/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What an address of the running task is in: its mapping, the file's number and the file's unwind table.
 *
 * To find that out from nothing reads some twenty lines of memory that no cache has. So each CPU remembers the last mappings of the last
 * programs. Where the kernel counts the changes of a program's mappings (Linux 6.4, x86), and there were none, they are what they were.
 * Else one is if the program's tree still has it there, of the same file: what the kernel gave back stays as it was for a while, or
 * becomes something else, so neither a mapping nor a file is believed to be there because it was.
 */
#pragma once

#include "record.h"
#include "new_file.h"

/* What a frame is in. Added to an address: */
struct mapped {
    u64 start;
    u64 end;
    u64 to_offset;  /* its offset in the file */
    u64 to_address; /* the address as the file numbers it */
    u32 number;     /* of the file, 0: none */
    u32 table;      /* in `tables`, NO_TABLE: none */
    struct table_layout layout;
    u32 go;
    u32 age; /* in which it was found out */
};

#define NO_TABLE 0xffffffff

#define KNOWN_PROGRAMS_BITS 6
#define KNOWN_PROGRAMS_PER_CPU (1 << KNOWN_PROGRAMS_BITS)
#define KNOWN_MAPPINGS 8

struct known_mapping {
    u64 vma;
    u64 file;
    struct file_key key;
    struct mm_state state; /* in which it was there; of no memory where that is not known */
    struct mapped mapped;
};

struct known_program {
    u64 mm;
    u64 next; /* place for the next mapping */
    /* Side by side, for they are looked through. */
    u64 start[KNOWN_MAPPINGS];
    u64 end[KNOWN_MAPPINGS];
    struct known_mapping mappings[KNOWN_MAPPINGS];
};

/* As many for each CPU, set by user space. */
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

/* Recalls what an address is in; says no where that is not known, or no longer so. A function of its own for the verifier. */
__attribute__((noinline)) int recall(struct mapped *mapped, u64 mm, u64 address)
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
    if (known->mapped.age != current_age())
        return 0;
    int is_told = read_mm_state(mm, &state);
    if (is_told && state.id == known->state.id && state.changes == known->state.changes) {
        *mapped = known->mapped;
        return 1;
    }
    if (READ_FIELD(tree, (struct mm_struct *)mm, mm_mt.ma_root) || find_vma(tree, address) != known->vma ||
        !read_mapping(known->vma, address, &mapping))
        return 0;
    if (mapping.start != known->mapped.start || mapping.end != known->mapped.end || mapping.file != known->file ||
        mapping.offset - mapping.start != known->mapped.to_offset)
        return 0;
    /* A library in the place of another often has its memory in the kernel, too. */
    if (!read_key(mm, &mapping, &key) != !known->mapped.number || !is_same_file(&key, &known->key))
        return 0;
    if (is_told)
        known->state = state;
    *mapped = known->mapped;
    return 1;
}

/* Takes the place of what the same mapping was known as before, if it was, else of the oldest. */
INLINE struct known_mapping *place_for(struct known_program *program, u64 mm, const struct mapped *mapped)
{
    if (program->mm != mm) {
        for (u32 i = 0; i < KNOWN_MAPPINGS; i++)
            program->end[i] = 0;
        program->mm = mm;
    }
    u32 at = program->next++ % KNOWN_MAPPINGS;
    for (u32 i = 0; i < KNOWN_MAPPINGS; i++) {
        at -= step_if(at - i, -(s64)(program->start[i] ^ mapped->start));
        /* What was where this is now would be found in its place. */
        if (program->start[i] < mapped->end && mapped->start < program->end[i])
            program->end[i] = 0;
    }
    program->start[at % KNOWN_MAPPINGS] = mapped->start;
    program->end[at % KNOWN_MAPPINGS] = mapped->end;
    return &program->mappings[at % KNOWN_MAPPINGS];
}

/* The file's part of it: its number, and its table if it has one. */
INLINE void map_file(struct mapped *mapped, const struct mapping *mapping, const struct file_key *key, u32 pid, u64 tree)
{
    struct file_entry *file = bpf_map_lookup_elem(&files, key);
    if (!file) {
        mapped->number = number_file(key, mapping, pid, tree);
        return;
    }
    mapped->number = file->number;
    /* Read once: another CPU may take the last. */
    u32 tries = *(volatile u32 *)&file->unread;
    if (tries)
        tell_unread(file, tries, mapped->number, key, mapping, pid, tree);
    if (!file->has_table)
        return;
    u32 used = USED_AT(bpf_ktime_get_ns());
    /* A line of memory that all CPUs read. */
    if (file->used != used)
        file->used = used;
    for (int i = 0; i < FILE_PARTS; i++) {
        struct file_part *part = &file->parts[i];
        /* Code comes first: a page of it may be a part of what is before it in the file, too. */
        if (mapped->table == NO_TABLE && part->start <= mapping->offset && mapping->offset < part->end) {
            mapped->table = file->table;
            mapped->layout = file->layout;
            mapped->go = file->go;
            mapped->to_address = mapped->to_offset + part->bias;
        }
    }
}

/* Finds out from nothing what an address is in; says no where there is nothing that runs. A function of its own for the verifier. */
__attribute__((noinline)) int find_mapped(struct mapped *mapped, u64 mm, u64 address, u32 pid)
{
    struct mapping mapping;
    struct file_key key = {};
    struct mm_state state = {};
    u64 tree;
    if (!mapped || READ_FIELD(tree, (struct mm_struct *)mm, mm_mt.ma_root))
        return 0;
    mapped->age = current_age();
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
    /* A table that a file has not yet is not waited for. */
    if (!program || (has_file && mapped->table == NO_TABLE))
        return 1;
    struct known_mapping *known = place_for(program, mm, mapped);
    known->vma = vma;
    known->file = mapping.file;
    known->key = key;
    known->state = state;
    known->mapped = *mapped;
    return 1;
}

/* Finds what an address is in; says no where there is nothing that runs. `mapped` is what the last one was in. */
INLINE int map_address(struct mapped *mapped, u64 mm, u64 address, u32 pid)
{
    if (mapped->start <= address && address < mapped->end)
        return 1;
    if (recall(mapped, mm, address))
        return 1;
    mapped->end = 0;
    return find_mapped(mapped, mm, address, pid);
}
