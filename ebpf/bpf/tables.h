/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What user space knows of files, as the unwinder looks it up: `files` says which number and which unwind table a file has, `tables`
 * has of each table an array of blocks. See agent/src/unwind/table.rs and rule.rs for its layout. No field of it crosses a multiple
 * of 16 bytes, so none crosses two blocks.
 */
#pragma once

#include "vma.h"

#define FILES_MAX 8192
#define TABLES_MAX 4096
/* Parts of a file that are loaded to run; nearly all have one. */
#define FILE_PARTS 2

#define BLOCK_BYTES 4096
#define BLOCK_ROWS (BLOCK_BYTES / 4)
/* A page has an address for every row, at most. */
#define PAGE_BLOCKS_MAX 8

/* Where what of a table is: see agent/src/unwind/table.rs. */
struct table_layout {
    u32 first_page; /* of 4 KiB */
    u32 pages;
    u32 rules_at;
    u32 rows_at;
};

/* Offsets of the file in [start, end) are loaded at `bias` more: addresses as the file numbers them. */
struct file_part {
    u64 start;
    u64 end;
    u64 bias;
};

struct file_entry {
    u32 number;    /* given here to a file that is met for the first time */
    u32 has_table; /* 0: frame pointers are followed */
    u32 table;     /* number in `tables` */
    u32 unread;    /* how often more it is tried to tell user space what the headers say */
    struct table_layout layout;
    u32 go; /* how a Go program has labels: see goroutine.h */
    u32 used; /* when its table was looked up last, see USED_AT: once in an age at least, if it is in use */
    struct file_part parts[FILE_PARTS];
};

/* Seconds or so, as the kernel's clock has them. */
#define USED_AT(ktime_ns) ((u32)((ktime_ns) >> 30))

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
    MAP_UINT(max_entries, FILES_MAX);
    MAP_TYPE(key, struct file_key);
    MAP_TYPE(value, struct file_entry);
} files SEC(".maps");

_Static_assert(sizeof(struct file_key) == 40, "");
_Static_assert(sizeof(struct file_entry) == 88, "");

/* As long as its file's table is. */
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
    RULE_LINKAGE_TABLE = 5,
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
    u8 base;  /* DWARF's number of a register */
    u8 saved; /* two bits each, enum rule_place: the frame pointer, BX */
    u8 zero;
    short fp; /* words */
    short bx;
    short ra;
    short after;
    int cfa;
};

_Static_assert(sizeof(struct rule) == 16, "");

/*
 * What was found out holds for an age. User space begins another one when it lets tables go, for what was found by one may be another file's
 * by now, and so may its number; and now and then, to see which tables are still looked up.
 */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} age SEC(".maps");

INLINE u32 current_age(void)
{
    u32 zero = 0;
    volatile u32 *current = bpf_map_lookup_elem(&age, &zero);
    return current ? *current : 0;
}

/*
 * Rules that were found lately, by frame. Between two samples a CPU forgets nearly all that it had in its caches: a search costs it six
 * lines of memory, a look at this one. A frame says which file and what offset, so an entry is right for an age.
 */
#define KNOWN_RULES_BITS 11
#define KNOWN_RULES_PER_CPU (1 << KNOWN_RULES_BITS)

struct known_rule {
    u64 frame;
    struct rule rule;
    u32 age; /* in which it was found */
    u32 zero;
};

_Static_assert(sizeof(struct known_rule) == 32, "");

/* As many for each CPU, set by user space. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, KNOWN_RULES_PER_CPU);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct known_rule);
} known_rules SEC(".maps");

/* The place of a frame among the known ones of this CPU. */
INLINE struct known_rule *known_rule_at(u64 frame)
{
    u32 at = bpf_get_smp_processor_id() << KNOWN_RULES_BITS | frame * HASH_FACTOR >> (64 - KNOWN_RULES_BITS);
    return bpf_map_lookup_elem(&known_rules, &at);
}

/* The `bytes` of a table at a multiple of as many; they are a power of two, 16 at most. */
INLINE void *table_at(void *table, u32 at, u32 bytes)
{
    u32 number = at / BLOCK_BYTES;
    u8 *block = bpf_map_lookup_elem(table, &number);
    return block ? block + (at & (BLOCK_BYTES - bytes)) : 0;
}

/* The block that has the last row of [first, end) that is not behind `address`. Most pages have one block. */
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

/* The last row of [first, end) that is not behind `address`; the first one never is. */
INLINE struct table_row *find_row(void *table, u32 first, u32 end, u16 address)
{
    u32 block = find_block(table, first, end, address);
    struct table_row *rows = bpf_map_lookup_elem(table, &block);
    if (!rows)
        return 0;
    /* Within the block; of an earlier one, its first row, which is the page's. */
    u32 start = block * BLOCK_ROWS;
    u32 at = start < first ? first % BLOCK_ROWS : 0;
    u32 last = start + BLOCK_ROWS < end ? BLOCK_ROWS - 1 : (end - 1) % BLOCK_ROWS;
    for (u32 step = BLOCK_ROWS / 2; step; step /= 2) {
        u32 next = at + step;
        s64 is_there = (s64)last - next;
        /* What is not there is not looked at: it may be in no cache. */
        u16 of_next = rows[(at + step_if(step, is_there)) % BLOCK_ROWS].address;
        at += step_if(step, ((s64)address - of_next) | is_there);
    }
    return &rows[at % BLOCK_ROWS];
}

/*
 * Where in a table the rule of an address is that is so far in a page; 0 if there is none. `page_at` is where the page is, the others are of
 * the layout. A function of its own for the verifier, which looks at it once.
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

/* A rule that was found. */
INLINE struct rule *rule_at(u32 number, u32 at)
{
    void *table = bpf_map_lookup_elem(&tables, &number);
    return table ? table_at(table, at, sizeof(struct rule)) : 0;
}
