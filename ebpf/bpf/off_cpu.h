/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Threads that wait: which of their waits are recorded, and until when each lasted.
 *
 * Nothing says beforehand how long a wait will last, and stacks can only be walked when it begins. So each place where threads wait (a
 * thread's stack and instruction pointer) is remembered with how long its waits last. So many of them as are expected to last `unit_us`
 * together are a turn: one of them, drawn beforehand, is recorded, and stands for all. So each is recorded with a chance that is known, and
 * divided by it, which is sent along, what is recorded adds up to what was waited, however wrong the expectation was (Horvitz and Thompson,
 * 1952); to much less than if each was drawn by itself. A turn ends early for what has nothing to do with whether its one was recorded yet.
 * The unit starts at 1 ms and doubles while more stacks are walked than a CPU has time for.
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
    u32 expected_us; /* by the waits that were recorded */
    u64 last_ns;     /* when it was met last; 0 once there was a whole turn */
    u32 most_us;     /* until then: how long a wait was at most, by the time between two */
    u32 unit_us;     /* when the turn began */
    u32 turn;        /* waits of it... */
    u32 left;        /* ...that are still to come */
    u32 drawn;       /* one is recorded when so many are left behind it */
    u32 zero;
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
        site->most_us = site->expected_us;
        site->last_ns = now_ns;
        site->left = 0;
    } else if (site && site->last_ns) {
        u64 between_us = (now_ns - site->last_ns) / 1000;
        u32 most_us = between_us > NEW_SITE_US_MAX ? NEW_SITE_US_MAX : between_us;
        if (most_us > site->most_us) {
            site->most_us = most_us;
            site->left = 0;
        }
        site->last_ns = now_ns;
    }
    return site;
}

/* Begins a turn, unless one goes on. */
INLINE void take_turns(struct site *site, u32 unit_us)
{
    u64 before_us = site->unit_us, now_us = unit_us;
    /* It was expected to take more stacks than there is time for by now, or much fewer. Two threads at one site may count below 0. */
    if (site->left - 1 < site->turn && now_us <= 4 * before_us && before_us <= 4 * now_us)
        return;
    u32 expected_us = site->last_ns && site->most_us > site->expected_us ? site->most_us : site->expected_us;
    u32 turn = (unit_us + expected_us / 2) / (expected_us | 1);
    site->unit_us = unit_us;
    site->turn = turn ? turn : 1;
    site->left = site->turn;
    site->drawn = bpf_get_prandom_u32() % site->turn;
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
    take_turns(site, pacer->unit_us);
    site->left--;
    if (!site->left)
        site->last_ns = 0;
    if (site->left != site->drawn)
        return 0;
    pacer->walks++;
    return 0xffffffff / site->turn;
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
            /* Up at once, down slowly: one that is missed costs more than one that is recorded in vain. */
            u32 less_us = site->expected_us - site->expected_us / 8;
            site->expected_us = lasted_us > less_us ? lasted_us : less_us;
        }
        wait->tid = 0;
        return 1;
    }
    return 0;
}
