/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Copies of words that lie close together, such as the frames of a stack. One read of many words costs less than a read
 * for each frame, because the CPU loads their cache lines at the same time, and nearly all of them are in no cache.
 */
#pragma once

#include "types.h"

/* A power of two. */
#define WINDOW_WORDS 64
#define WINDOW_BYTES (WINDOW_WORDS * sizeof(u64))
/* Largest number of bytes that a read asks for. */
#define WINDOW_ASKED_MAX 128

struct window {
    u64 start;
    u64 bytes; /* 0: nothing is copied */
    u64 words[WINDOW_WORDS];
};

/* The other words that are copied. */
enum window_side {
    WINDOW_ABOVE = 0, /* those at higher addresses */
    WINDOW_BELOW = 1, /* those at lower addresses */
    WINDOW_NONE = 2,
};

/* Copies the bytes [address, address + bytes) unless they are copied already. The address is that of a word. Returns 1
 * on success. */
INLINE int read_window(struct window *window, u64 address, u32 bytes, enum window_side side)
{
    u64 skipped = address - window->start;
    if (address & 7 || bytes > WINDOW_ASKED_MAX)
        return 0;
    if (skipped < window->bytes && skipped + bytes <= window->bytes)
        return 1;
    window->start = side == WINDOW_BELOW ? address + (bytes + 7) / 8 * 8 - WINDOW_BYTES : address;
    window->bytes = WINDOW_BYTES;
    if (side != WINDOW_NONE && !bpf_probe_read_user(window->words, WINDOW_BYTES, (void *)window->start))
        return 1;
    /* The memory may end within the window. */
    window->start = address;
    window->bytes = bytes;
    if (!bpf_probe_read_user(window->words, bytes, (void *)address))
        return 1;
    window->bytes = 0;
    return 0;
}

/* The copied values at an address. Addresses beyond the copy have wrong values. */
INLINE u64 window_word(const struct window *window, u64 address)
{
    return window->words[(address - window->start) / sizeof(u64) % WINDOW_WORDS];
}

INLINE u32 window_int(const struct window *window, u64 address)
{
    return ((const u32 *)window->words)[(address - window->start) / sizeof(u32) % (2 * WINDOW_WORDS)];
}

INLINE u8 window_byte(const struct window *window, u64 address)
{
    return ((const u8 *)window->words)[(address - window->start) % WINDOW_BYTES];
}
