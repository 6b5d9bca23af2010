/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the mapping that holds an address of the running task: the number of the mapped file, the file's unwind table,
 * and the rule for the address in this table.
 *
 * A lookup in the kernel's tree reads about twenty cache lines that are in none of the CPU's caches. So BPF caches, for
 * each CPU, the last mappings that were found in each of the last programs.
 *
 * Linux 6.4 and later, on x86, count the changes of a program's mappings. A cached mapping is valid as long as that
 * count is unchanged. Otherwise, it is valid if the program's tree still has the same mapping of the same file. An
 * equal address is no proof of that: the kernel may have freed the struct there, and something else may lie there now.
 */
#pragma once

#include "new_file.h"
#include "../tables.h"
#include "../types.h"
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
    u32 go;      /* see runtimes/goroutine.h */
    u32 runtime; /* id in `runtimes`; 0: none */
    u32 epoch;   /* epoch of the lookup */
    u32 has_file; /* 0 for private memory without a file; a file that is only shared memory has no number */
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
    /* See runtimes/compiled.h: 1 if a compiler was found, and the epoch in which none was found. */
    u32 has_compiler;
    u32 is_searched;
    u32 searched;
    u32 zero;
    /* Starts and ends of the mappings have their own arrays, because every lookup scans them. */
    u64 start[KNOWN_MAPPINGS];
    u64 end[KNOWN_MAPPINGS];
    struct known_mapping mappings[KNOWN_MAPPINGS];
};

/* Cache of mappings: KNOWN_PROGRAMS_PER_CPU entries for each CPU. User space sets max_entries, because it knows the
 * number of CPUs. */
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

/* Looks an address up in the cache. Returns 0 if no valid mapping of it is cached. Not inlined, so that the verifier
 * checks the function once. */
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
    /* The structs of a library that replaces another often lie at the addresses of the replaced library's structs. */
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
        program->has_compiler = program->is_searched = 0;
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
        /* The array begins with the part that has the code. One page of that part may also belong to the part before it
         * in the file, and then the first match counts. */
        if (mapped->table == NO_TABLE && part->start <= mapping->offset && mapping->offset < part->end) {
            mapped->table = file->table;
            mapped->layout = file->layout;
            mapped->go = file->go;
            mapped->runtime = file->runtime;
            mapped->to_address = mapped->to_offset + part->bias;
        }
    }
}

/* Looks an address up in the kernel's tree, and caches the result. Returns 0 if no executable mapping holds it. Not
 * inlined, so that the verifier checks the function once. */
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
    mapped->runtime = 0;
    mapped->has_file = read_key(mm, &mapping, &key);
    if (mapped->has_file)
        map_file(mapped, &mapping, &key, pid, tree);
    struct known_program *program = known_program_at(mm);
    /* A mapping of a file without a table is not cached, because the file may get a table. */
    if (!program || (mapped->has_file && mapped->table == NO_TABLE))
        return 1;
    struct known_mapping *known = entry_for(program, mm, mapped);
    known->vma = vma;
    known->file = mapping.file;
    known->key = key;
    known->state = state;
    known->mapped = *mapped;
    return 1;
}

/* Finds the mapping of an address. Returns 0 if no executable mapping holds it. `mapped` holds the result of the last
 * call, which often fits again. */
INLINE int map_address(struct mapped *mapped, u64 mm, u64 address, u32 pid)
{
    if (mapped->start <= address && address < mapped->end)
        return 1;
    if (find_cached(mapped, mm, address))
        return 1;
    mapped->end = 0;
    return find_mapped(mapped, mm, address, pid);
}

/* Copies the rule of an ELF virtual address in the table of `mapped`. Returns 0 if there is none. */
INLINE int load_rule(const struct mapped *mapped, struct rule *rule, u64 address)
{
    const struct table_layout *layout = &mapped->layout;
    u64 page = (address >> 12) - layout->first_page;
    if (page >= layout->pages)
        return 0;
    u32 page_at = page * sizeof(struct table_page);
    u32 at = find_rule(mapped->table, page_at, layout->rules_at, layout->rows_at, address & 0xfff);
    struct rule *found = at ? rule_at(mapped->table, at) : 0;
    if (!found)
        return 0;
    *rule = *found;
    return 1;
}

/* Copies the rule of a frame, from the cache of rules if it is there. Returns 0 if there is none. */
INLINE int load_cached_rule(const struct mapped *mapped, struct rule *rule, u64 frame, u64 address)
{
    struct known_rule *known = known_rule_at(frame);
    if (known && known->frame == frame && known->epoch == mapped->epoch) {
        *rule = known->rule;
        return 1;
    }
    if (!load_rule(mapped, rule, address))
        return 0;
    if (known) {
        known->rule = *rule;
        known->frame = frame;
        known->epoch = mapped->epoch;
    }
    return 1;
}
