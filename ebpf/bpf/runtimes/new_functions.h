/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds functions that a record is the first to have. Programs that handle requests often free the functions of a
 * request at its end, so user space has to read their names at once. It says for which programs this is needed. A
 * process that was just started may end soon, and then all its functions are gone.
 */
#pragma once

#include "../record.h"
#include "../scratch.h"
#include "../types.h"

/* A power of two. */
#define KNOWN_FUNCTIONS_BITS 12

/* Hashes of functions that were recorded, at the place that the hash gives. If two functions have the same place, user
 * space is woken more often than needed. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1 << KNOWN_FUNCTIONS_BITS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} known_functions SEC(".maps");

struct function_search {
    struct scratch *scratch;
    u64 number; /* a hash with another number is that of another function */
    u32 at; /* index of the next word in scratch->frames */
    u32 is_found;
};

/* Looks at one frame. Returns 1 after the last one. */
static long check_function(u32 index, struct function_search *search)
{
    struct scratch *scratch = search->scratch;
    u32 at = search->at;
    if (at >= (u32)scratch->header.kernel_frames + scratch->header.user_words ||
        at >= KERNEL_FRAMES_MAX + USER_WORDS_MAX - 1)
        return 1;
    u64 frame = scratch->frames[at];
    search->at = at + 1;
    if (frame & FRAME_IN_FILE || !(frame & FRAME_OF_RUNTIME))
        return 0;
    search->at = at + 2;
    u32 identity = scratch->frames[at + 1];
    u64 hash = ((frame ^ scratch->header.pid ^ search->number << 32) * HASH_FACTOR ^ identity) * HASH_FACTOR;
    u32 place = hash >> (64 - KNOWN_FUNCTIONS_BITS);
    u32 *known = bpf_map_lookup_elem(&known_functions, &place);
    if (known && *known != (u32)hash) {
        *known = hash;
        search->is_found = 1;
    }
    return 0;
}

/* Returns 1 if a function of the record was not in the records before, since the number changed. */
INLINE int has_new_function(struct scratch *scratch, u64 number)
{
    struct function_search search = { .scratch = scratch, .number = number, .at = scratch->header.kernel_frames };
    bpf_loop(USER_FRAMES_MAX, check_function, &search, 0);
    return search.is_found;
}
