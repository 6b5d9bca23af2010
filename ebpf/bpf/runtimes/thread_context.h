/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads the ids of the trace and the span that a thread works for, if its program publishes OpenTelemetry's thread
 * context (OTEP 4947): a thread-local pointer to a record, which is null outside of spans. User space finds out where
 * the program keeps the pointer (agent/src/runtimes/contexts.rs).
 *
 * Only the thread itself changes its record, and it is interrupted while BPF reads, so a valid record is complete.
 */
#pragma once

#include "../record.h"
#include "../scratch.h"
#include "../thread_pointer.h"
#include "../types.h"

#define THREAD_RECORD_VALID 1
/* Records begin at a multiple of this number. */
#define THREAD_RECORD_ALIGN 2

/* Start of a record. Flags, the size of the attributes and the attributes follow. */
struct thread_record {
    struct link link;
    u8 valid;
} __attribute__((packed));

_Static_assert(sizeof(struct thread_record) == 25, "");

/* Appends the link of the running thread after the frames and labels, if the thread is in a span. Not inlined, so that
 * the verifier checks the function once. */
__attribute__((noinline)) int read_link(struct scratch *scratch, const struct thread_pointer *pointer)
{
    struct thread_record record;
    u64 at = 0;
    if (!scratch || !pointer || read_thread_pointer(&at, pointer, 0) || !at || at % THREAD_RECORD_ALIGN ||
        bpf_probe_read_user(&record, sizeof(record), (void *)at) || record.valid != THREAD_RECORD_VALID ||
        !(record.link.trace_id[0] | record.link.trace_id[1]) || !record.link.span_id)
        return 0;
    u64 words = scratch->header.kernel_frames + scratch->header.user_words, labels = scratch->header.labels;
    if (words > KERNEL_FRAMES_MAX + USER_WORDS_MAX || labels > LABELS_MAX)
        return 0;
    struct link *to = (void *)&scratch->frames[words] + labels * sizeof(struct label);
    *to = record.link;
    scratch->header.links = 1;
    return 0;
}
