/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Chooses the waits of threads that are recorded, and finds the ends of these waits.
 *
 * The duration of a wait is not known when it begins, and its stack can be walked only then. So the programs keep, for
 * each site where threads wait, the expected duration of a wait. A site is a thread together with its stack pointer and
 * its instruction pointer.
 *
 * Consecutive waits at one site form a stratum: as many waits as are expected to last one unit (`unit_us`) in total.
 * One wait of each stratum is chosen in advance, at random, and recorded together with the probability of that choice.
 * A recorded duration divided by its probability gives an unbiased total, however wrong the expected duration was
 * (Horvitz and Thompson, 1952). The variance of this total is much lower than if each wait were chosen independently. A
 * stratum may end early, but only for reasons that are independent of whether its chosen wait was recorded already. The
 * unit starts at 1 ms and doubles while more stacks are walked than the time budget of a CPU allows.
 *
 * A wait ends when the thread may run again. The time from then until the thread runs is not waiting time, because only
 * the scheduler delays the thread.
 */
#pragma once

#include "types.h"

#define WAITS_BITS 14
/* Number of slots of `waits` that a thread may use. If other threads use all of them, the wait is counted as
 * dropped. */
#define WAITS_TRIES 8
#define SITES_BITS 14

#define UNIT_US_MIN 1000
#define UNIT_US_MAX (1u << 30)
/*
 * The expected duration of a wait at a new site is unit_us / NEW_SITE_PART, but at least NEW_SITE_US_MIN and at most
 * NEW_SITE_US_MAX. The quotient gives a stratum about NEW_SITE_PART waits, and so bounds the weight of a recorded wait
 * that lasts longer than expected. The limits ensure that a larger unit leads to fewer recorded waits even if all sites
 * are new.
 */
#define NEW_SITE_PART 32
#define NEW_SITE_US_MIN 10000
#define NEW_SITE_US_MAX 1000000
/* The unit is doubled once a CPU has walked this many stacks in one time window. */
#define WINDOW_WALKS 20

/* Length of the time window, in nanoseconds. User space sets it so that the walks of all CPUs together stay within its
 * budget of CPU time. */
const volatile u64 off_cpu_window_ns = 100000000;

/* A recorded wait that has not ended. `tid` is 0 in a free slot. */
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
    u32 tag;         /* hash of the site, to tell it from others in its slot */
    u32 expected_us; /* expected duration of a wait, from recorded waits */
    u64 last_ns;     /* start of the last wait, in ns; 0 after the site's first whole stratum */
    u32 most_us;     /* while last_ns is set: longest time between two starts, which no wait between them exceeds */
    u32 unit_us;     /* unit at the start of the stratum, in microseconds */
    u32 stratum;     /* number of waits of the stratum */
    u32 left;        /* number of its waits that are still to come */
    u32 chosen;      /* value of `left` after the wait that is recorded */
    u32 zero;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1 << SITES_BITS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct site);
} sites SEC(".maps");

/* A CPU's budget for walking the stacks of waits: the current time window, the walks in it, and the unit. */
struct walk_budget {
    u64 window_start_ns;
    u32 walks;
    u32 unit_us;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct walk_budget);
} walk_budgets SEC(".maps");

/* Returns the slot of `waits` that attempt number `attempt` uses to find or store the wait of a thread. */
INLINE u32 wait_at(u32 tid, u32 attempt)
{
    return ((u32)(tid * HASH_FACTOR >> (64 - WAITS_BITS)) + attempt) & ((1 << WAITS_BITS) - 1);
}

/* Returns the site of a waiting thread, and sets `number` to its slot in `sites`. If another site has that slot, this
 * one replaces it. */
INLINE struct site *site_of(u32 tid, u64 pc, u64 sp, const struct walk_budget *budget, u64 now_ns, u32 *number)
{
    u64 hash = ((u64)tid << 32 ^ pc) * HASH_FACTOR;
    hash = (hash ^ hash >> 32 ^ sp) * HASH_FACTOR;
    u32 tag = hash;
    *number = hash >> (64 - SITES_BITS);
    struct site *site = bpf_map_lookup_elem(&sites, number);
    if (site && site->tag != tag) {
        site->tag = tag;
        u32 part_us = budget->unit_us / NEW_SITE_PART;
        site->expected_us = part_us < NEW_SITE_US_MIN   ? NEW_SITE_US_MIN
                            : part_us > NEW_SITE_US_MAX ? NEW_SITE_US_MAX
                                                        : part_us;
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

/* Begins a stratum, unless one is in progress and its unit is still about right. */
INLINE void update_stratum(struct site *site, u32 unit_us)
{
    u64 before_us = site->unit_us, now_us = unit_us;
    /* A stratum also ends if the unit has changed a lot. `left` may have passed below 0, if two CPUs counted it down at
     * once. */
    if (site->left - 1 < site->stratum && now_us <= 4 * before_us && before_us <= 4 * now_us)
        return;
    u32 expected_us = site->last_ns && site->most_us > site->expected_us ? site->most_us : site->expected_us;
    u32 stratum = (unit_us + expected_us / 2) / (expected_us | 1);
    site->unit_us = unit_us;
    site->stratum = stratum ? stratum : 1;
    site->left = site->stratum;
    site->chosen = bpf_get_prandom_u32() % site->stratum;
}

/* Doubles or halves the unit by the number of stacks walked in the current time window. */
INLINE void adjust_unit(struct walk_budget *budget, u64 now_ns)
{
    if (budget->unit_us < UNIT_US_MIN)
        budget->unit_us = UNIT_US_MIN;
    if (budget->walks >= WINDOW_WALKS) {
        if (budget->unit_us < UNIT_US_MAX)
            budget->unit_us *= 2;
    } else if (now_ns - budget->window_start_ns < off_cpu_window_ns) {
        return;
    } else if (budget->walks < WINDOW_WALKS / 4 && budget->unit_us > UNIT_US_MIN) {
        budget->unit_us /= 2;
    }
    budget->walks = 0;
    budget->window_start_ns = now_ns;
}

/*
 * Decides whether the wait that begins is recorded. Returns the inclusion probability of the wait times 2^32, or 0 if
 * the wait is not recorded. The caller stores a recorded wait by begin_wait().
 */
INLINE u32 choose(u32 tid, u64 pc, u64 sp, u64 now_ns, u32 *site_number)
{
    u32 zero = 0;
    struct walk_budget *budget = bpf_map_lookup_elem(&walk_budgets, &zero);
    if (!budget)
        return 0;
    adjust_unit(budget, now_ns);
    struct site *site = site_of(tid, pc, sp, budget, now_ns, site_number);
    if (!site)
        return 0;
    update_stratum(site, budget->unit_us);
    site->left--;
    if (!site->left)
        site->last_ns = 0;
    if (site->left != site->chosen)
        return 0;
    budget->walks++;
    return 0xffffffff / site->stratum;
}

/* Stores a wait until the thread may run again. Returns 0 if no slot is free. */
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

/* Ends the wait of a thread. Returns 0 if none was recorded. */
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
            /* The expected duration rises at once and falls slowly, because missing a long wait costs more than
             * recording a short one. */
            u32 less_us = site->expected_us - site->expected_us / 8;
            site->expected_us = lasted_us > less_us ? lasted_us : less_us;
        }
        wait->tid = 0;
        return 1;
    }
    return 0;
}
