/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Threads that wait: which of their waits are recorded, and until when each lasted.
 *
 * Nothing says beforehand how long a wait will last, and stacks can only be walked when it begins. So each place where threads wait (a
 * thread's stack and instruction pointer) is remembered with how long its waits last. A wait that is expected to last `unit_us` or longer
 * is always recorded, a shorter one with a chance that is its part of it, and the chance is sent along: divided by it, what is recorded adds
 * up to what was waited, however wrong the expectation was (Horvitz and Thompson, 1952). The unit starts at 1 ms and doubles while more
 * stacks are walked than a CPU has time for.
 *
 * A wait ends when the thread may run again, not when it does: the time between is the scheduler's.
 */
#pragma once

#include "types.h"

#define WAITS_BITS 14
/* Places that a thread's wait may be at; where all are taken, the wait is counted as dropped. */
#define WAITS_TRIES 8
#define SITES_BITS 14

#define UNIT_US_MIN 1000
#define UNIT_US_MAX (1u << 30)
/*
 * Of a site that nothing is known of, that part of a unit is expected, within limits: one that is expected too short and is recorded all the
 * same stands for very much, and where all sites are new, a larger unit must still mean fewer stacks.
 */
#define NEW_SITE_PART 32
#define NEW_SITE_US_MIN 10000
#define NEW_SITE_US_MAX 1000000
/* Stacks in a window before the unit is doubled. */
#define WINDOW_WALKS 20

/* Set by user space: so that all CPUs together walk no more stacks than one has time for. */
const volatile u64 off_cpu_window_ns = 100000000;

/* A wait that is recorded; 0 in `tid`: none. */
struct wait {
    u64 since_ns;
    u32 tid;
    u32 site;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1 << WAITS_BITS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct wait);
} waits SEC(".maps");

struct site {
    u32 tag;
    u32 expected_us;
    u64 last_ns; /* when it was met last; 0 once a wait there was recorded */
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1 << SITES_BITS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct site);
} sites SEC(".maps");

struct pacer {
    u64 window_start_ns;
    u32 walks;
    u32 unit_us;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct pacer);
} pacers SEC(".maps");

INLINE u32 wait_at(u32 tid, u32 attempt)
{
    return ((u32)(tid * HASH_FACTOR >> (64 - WAITS_BITS)) + attempt) & ((1 << WAITS_BITS) - 1);
}

/* The site of a thread that waits, and its tag. A place that another had is its own from now on. */
INLINE struct site *site_of(u32 tid, u64 pc, u64 sp, const struct pacer *pacer, u64 now_ns, u32 *number)
{
    u64 hash = ((u64)tid << 32 ^ pc) * HASH_FACTOR;
    hash = (hash ^ hash >> 32 ^ sp) * HASH_FACTOR;
    u32 tag = hash;
    *number = hash >> (64 - SITES_BITS);
    struct site *site = bpf_map_lookup_elem(&sites, number);
    if (site && site->tag != tag) {
        site->tag = tag;
        u32 part_us = pacer->unit_us / NEW_SITE_PART;
        site->expected_us = part_us < NEW_SITE_US_MIN ? NEW_SITE_US_MIN : part_us > NEW_SITE_US_MAX ? NEW_SITE_US_MAX : part_us;
        site->last_ns = now_ns;
    } else if (site && site->last_ns) {
        /* Until a wait is recorded, all that is known is that it was no longer than the time between two. */
        u64 between_us = (now_ns - site->last_ns) / 1000;
        u32 most_us = between_us > NEW_SITE_US_MAX ? NEW_SITE_US_MAX : between_us;
        if (most_us > site->expected_us)
            site->expected_us = most_us;
        site->last_ns = now_ns;
    }
    return site;
}

/* Of 2^32, less one. */
INLINE u32 chance_of(const struct site *site, const struct pacer *pacer)
{
    u64 expected = site->expected_us;
    if (expected >= pacer->unit_us)
        return 0xffffffff;
    u64 chance = (expected << 32) / (pacer->unit_us | 1);
    return chance ? chance : 1;
}

INLINE void pace(struct pacer *pacer, u64 now_ns)
{
    if (pacer->unit_us < UNIT_US_MIN)
        pacer->unit_us = UNIT_US_MIN;
    if (pacer->walks >= WINDOW_WALKS) {
        if (pacer->unit_us < UNIT_US_MAX)
            pacer->unit_us *= 2;
    } else if (now_ns - pacer->window_start_ns < off_cpu_window_ns) {
        return;
    } else if (pacer->walks < WINDOW_WALKS / 4 && pacer->unit_us > UNIT_US_MIN) {
        pacer->unit_us /= 2;
    }
    pacer->walks = 0;
    pacer->window_start_ns = now_ns;
}

/*
 * Whether the wait that begins is recorded, and with which chance that was decided; 0 if not. One that is must be given a place by
 * begin_wait().
 */
INLINE u32 draw(u32 tid, u64 pc, u64 sp, u64 now_ns, u32 *site_number)
{
    u32 zero = 0;
    struct pacer *pacer = bpf_map_lookup_elem(&pacers, &zero);
    if (!pacer)
        return 0;
    pace(pacer, now_ns);
    struct site *site = site_of(tid, pc, sp, pacer, now_ns, site_number);
    if (!site)
        return 0;
    u32 chance = chance_of(site, pacer);
    if (bpf_get_prandom_u32() > chance)
        return 0;
    pacer->walks++;
    return chance;
}

/* Remembers a wait until the thread may run again; says no where there is no room. */
INLINE int begin_wait(u32 tid, u32 site_number, u64 now_ns)
{
    for (u32 i = 0; i < WAITS_TRIES; i++) {
        u32 at = wait_at(tid, i);
        struct wait *wait = bpf_map_lookup_elem(&waits, &at);
        if (!wait || (wait->tid != tid && __sync_val_compare_and_swap(&wait->tid, 0, tid)))
            continue;
        wait->since_ns = now_ns;
        wait->site = site_number;
        return 1;
    }
    return 0;
}

/* Ends the wait of a thread; says no if none was recorded. */
INLINE int end_wait(u32 tid, u64 now_ns, u64 *since_ns)
{
    for (u32 i = 0; i < WAITS_TRIES; i++) {
        u32 at = wait_at(tid, i);
        struct wait *wait = bpf_map_lookup_elem(&waits, &at);
        if (!wait || wait->tid != tid)
            continue;
        *since_ns = wait->since_ns;
        u32 site_number = wait->site;
        struct site *site = bpf_map_lookup_elem(&sites, &site_number);
        u64 us = (now_ns - *since_ns) / 1000;
        u32 lasted_us = us > UNIT_US_MAX ? UNIT_US_MAX : us;
        if (site) {
            site->last_ns = 0;
            /* Up at once, down slowly: one that is missed costs more than one that is recorded in vain. */
            u32 less_us = site->expected_us - site->expected_us / 8;
            site->expected_us = lasted_us > less_us ? lasted_us : less_us;
        }
        wait->tid = 0;
        return 1;
    }
    return 0;
}
