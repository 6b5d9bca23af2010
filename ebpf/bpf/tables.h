/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Files and their unwind tables. `files` has the number of each file, and the slot of its table: the index in `tables`.
 * Each slot of `tables` has one table, as an array of blocks.
 *
 * agent/src/unwind/table.rs and rule.rs define the layout of a table. No field of a table crosses a multiple of 16
 * bytes, so each field lies in one block.
 */
#pragma once

#include "types.h"
#include "mappings/vma.h"

#define FILES_MAX 8192
#define TABLES_MAX 4096
/* Largest number of executable parts of a file. Nearly all files have one. */
#define FILE_PARTS 2

#define BLOCK_BYTES 4096
#define BLOCK_ROWS (BLOCK_BYTES / 4)
/* Largest number of blocks among which the rows of one page may be spread, as a power of two. A page has at most one
 * row per address. */
#define PAGE_BLOCKS_MAX 8

/* Layout of one table. */
struct table_layout {
    u32 first_page; /* number of the first 4 KiB page */
    u32 pages;      /* number of pages */
    u32 rules_at;   /* offset of the rules, in bytes */
    u32 rows_at;    /* offset of the rows, in bytes */
};

/* An executable part of a file: the file offsets [start, end). A file offset plus `bias` is an ELF virtual address. */
struct file_part {
    u64 start;
    u64 end;
    u64 bias;
};

struct file_entry {
    u32 number;    /* number of the file, given by BPF */
    u32 has_table; /* 0: its code is unwound by frame pointers */
    u32 table;     /* slot in `tables` */
    u32 unread;    /* number of attempts left to read the headers and report them */
    struct table_layout layout;
    u32 go;      /* see runtimes/goroutine.h; 0: not a Go program */
    u32 runtime; /* id in `runtimes`; 0: none */
    u32 zero;
    u32 used; /* time of the last lookup, in units of USED_AT. Updated at least once per epoch while in use. */
    struct file_part parts[FILE_PARTS];
};

/* Time of CLOCK_MONOTONIC in units of 2^30 ns, about a second. */
#define USED_AT(ktime_ns) ((u32)((ktime_ns) >> 30))

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
    MAP_UINT(max_entries, FILES_MAX);
    MAP_TYPE(key, struct file_key);
    MAP_TYPE(value, struct file_entry);
} files SEC(".maps");

_Static_assert(sizeof(struct file_key) == 40, "");
_Static_assert(sizeof(struct file_entry) == 96, "");

/* The blocks of one table. Each array has its own length. */
struct blocks {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(map_flags, BPF_F_INNER_MAP);
    MAP_UINT(max_entries, 1);
    MAP_UINT(key_size, sizeof(u32));
    MAP_UINT(value_size, BLOCK_BYTES);
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    MAP_UINT(max_entries, TABLES_MAX);
    MAP_UINT(key_size, sizeof(u32));
    MAP_UINT(value_size, sizeof(u32));
    struct blocks *values[];
} tables SEC(".maps");

struct table_page {
    u32 first_row;
    u32 rows;
};

struct table_row {
    u16 address;
    u16 rule;
};

enum rule_kind {
    RULE_UNKNOWN = 0,
    RULE_ROOT = 1,
    RULE_SIGNAL = 2,
    RULE_REGISTER = 3,
    RULE_MEMORY = 4,
    RULE_PLT = 5,
    RULE_INVALID = 6,
    RULE_GROWS = 7,
};

enum rule_place {
    PLACE_SAME = 0,
    PLACE_CFA = 1,
    PLACE_FP = 2,
    PLACE_LOST = 3,
};

struct rule {
    u8 kind;  /* enum rule_kind */
    u8 base;  /* DWARF number of a register */
    u8 saved; /* enum rule_place of the frame pointer (bits 0 and 1) and of BX (bits 2 and 3) */
    u8 zero;
    short fp; /* fp, bx and ra are offsets in words; after and cfa are in bytes */
    short bx;
    short ra;
    short after;
    int cfa;
};

_Static_assert(sizeof(struct rule) == 16, "");

/*
 * The current epoch. Cached lookups are valid within the epoch in which they were made. User space begins another epoch
 * when it evicts tables, because other tables may then get their slots, and other files their files' numbers. It also
 * begins another epoch from time to time, to learn which tables are in use.
 */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} epoch SEC(".maps");

INLINE u32 current_epoch(void)
{
    u32 zero = 0;
    volatile u32 *current = bpf_map_lookup_elem(&epoch, &zero);
    return current ? *current : 0;
}

/*
 * Cache of rules, by frame: the number of a file and an offset in it. An entry is valid within its epoch. Between two
 * samples, other code replaces nearly all lines in a CPU's caches. A search of a table then reads six cache lines from
 * memory, and a lookup in this cache reads one.
 */
#define KNOWN_RULES_BITS 11
#define KNOWN_RULES_PER_CPU (1 << KNOWN_RULES_BITS)

struct known_rule {
    u64 frame;
    struct rule rule;
    u32 epoch; /* epoch of the lookup */
    u32 zero;
};

_Static_assert(sizeof(struct known_rule) == 32, "");

/* KNOWN_RULES_PER_CPU entries for each CPU. User space sets max_entries, because it knows the number of CPUs. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, KNOWN_RULES_PER_CPU);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct known_rule);
} known_rules SEC(".maps");

/* Returns the cache entry for a frame on this CPU. */
INLINE struct known_rule *known_rule_at(u64 frame)
{
    u32 at = bpf_get_smp_processor_id() << KNOWN_RULES_BITS | frame * HASH_FACTOR >> (64 - KNOWN_RULES_BITS);
    return bpf_map_lookup_elem(&known_rules, &at);
}

/* Returns a pointer to the `bytes` bytes at offset `at` of a table; 0 if the table is shorter. `bytes` is a power of
 * two, at most 16, and `at` is a multiple of it. */
INLINE void *table_at(void *table, u32 at, u32 bytes)
{
    u32 number = at / BLOCK_BYTES;
    u8 *block = bpf_map_lookup_elem(table, &number);
    return block ? block + (at & (BLOCK_BYTES - bytes)) : 0;
}

/* Returns the number of the block that has the last of the rows [first, end) whose address is not above `address`. The
 * rows of most pages lie in one block. */
INLINE u32 find_block(void *table, u32 first, u32 end, u16 address)
{
    u32 block = first / BLOCK_ROWS, last = (end - 1) / BLOCK_ROWS;
    for (u32 step = PAGE_BLOCKS_MAX / 2; step; step /= 2) {
        u32 next = block + step;
        if (next > last)
            continue;
        struct table_row *row = table_at(table, next * BLOCK_BYTES, sizeof(*row));
        if (row)
            block += step_if(step, (s64)address - row->address);
    }
    return block;
}

/* Returns the last of the rows [first, end) whose address is not above `address`. There always is one, because a page's
 * first row has the page's first address. */
INLINE struct table_row *find_row(void *table, u32 first, u32 end, u16 address)
{
    u32 block = find_block(table, first, end, address);
    struct table_row *rows = bpf_map_lookup_elem(table, &block);
    if (!rows)
        return 0;
    /* Indices of rows within the block. The rows of the page may begin in the middle of the block. */
    u32 start = block * BLOCK_ROWS;
    u32 at = start < first ? first % BLOCK_ROWS : 0;
    u32 last = start + BLOCK_ROWS < end ? BLOCK_ROWS - 1 : (end - 1) % BLOCK_ROWS;
    for (u32 step = BLOCK_ROWS / 2; step; step /= 2) {
        u32 next = at + step;
        s64 is_there = (s64)last - next;
        /* A row outside the range is not read, because it may be in no cache. */
        u16 of_next = rows[(at + step_if(step, is_there)) % BLOCK_ROWS].address;
        at += step_if(step, ((s64)address - of_next) | is_there);
    }
    return &rows[at % BLOCK_ROWS];
}

/*
 * Returns the offset of the rule for an address in the table of slot `number`; 0 if there is no rule. `address` is
 * relative to the start of its page. `page_at` is the offset of the page's struct table_page; `rules_at` and `rows_at`
 * are those of the layout. Not inlined, so that the verifier checks the function once.
 */
__attribute__((noinline)) u32 find_rule(u32 number, u32 page_at, u32 rules_at, u32 rows_at, u32 address)
{
    void *table = bpf_map_lookup_elem(&tables, &number);
    if (!table)
        return 0;
    struct table_page *page = table_at(table, page_at, sizeof(*page));
    if (!page || !page->rows)
        return 0;
    u32 first = rows_at / sizeof(struct table_row) + page->first_row;
    struct table_row *row = find_row(table, first, first + page->rows, address);
    return row ? rules_at + row->rule * sizeof(struct rule) : 0;
}

/* Returns the rule at an offset that find_rule() returned. */
INLINE struct rule *rule_at(u32 number, u32 at)
{
    void *table = bpf_map_lookup_elem(&tables, &number);
    return table ? table_at(table, at, sizeof(struct rule)) : 0;
}
