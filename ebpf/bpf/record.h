/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * One record of the ring buffer `samples`: a header and only the frames that are in use,
 *
 * | struct sample_header, 72 bytes | kernel_frames x u64 | user_frames x u64 | labels x struct label |
 *
 * or the end of a wait, behind the sample that tells of its beginning: struct wait_end, 24 bytes.
 *
 * Integers are in the byte order of the machine; both parts of the stack are leaf first. Frames of the user part are addresses
 * inside the calling instruction: one is taken off every return address here, where it is known to be one (a leaf, what a
 * signal struck and a signal trampoline are none). In the kernel part every frame but the leaf is a plain return address.
 *
 * src/record.rs reads the assertions below and compares every offset with the Rust struct of the same name.
 */
#pragma once

#include "types.h"

/* The kernel's default of kernel.perf_event_max_stack; bpf_get_stack() gives no more. */
#define KERNEL_FRAMES_MAX 127
/* A stack this deep costs 9 KB in the ring buffer and about 40 us of walking. */
#define USER_FRAMES_MAX 1024
#define COMM_BYTES 16

/*
 * A frame of the user part in a file: FRAME_IN_FILE | number of the file | offset in it, 40 bits. Any other is an address of the
 * process: of memory that is no file's, or of a file that has no number.
 */
#define FRAME_IN_FILE (1ull << 63)
#define FRAME_OFFSET_BITS 40
/* From 1 on. */
#define FILE_NUMBERS (1u << 22)

/* How the user part of a stack ended: what user space says at its root. */
enum user_end {
    USER_END_NONE = 0,      /* no user part: a kernel thread */
    USER_END_ROOT = 1,      /* the outermost frame: its rule says so, or its frame pointer is 0 */
    USER_END_BROKEN = 2,    /* no rule, or no frame where one or a frame pointer led */
    USER_END_TRUNCATED = 3, /* more than USER_FRAMES_MAX frames */
    USER_END_COMPAT = 4,    /* a 32-bit program: only the leaf is recorded */
};

struct sample_header {
    u64 ktime_ns;         /* CLOCK_MONOTONIC */
    u64 start_boottime_ns; /* when the process started, CLOCK_BOOTTIME: tells a reused pid from the old process */
    u64 exec_id;          /* counts the execve() calls of the process: tells what it ran before from what it runs */
    u32 pid;              /* of the process (the kernel's tgid), in the initial pid namespace */
    u32 tid;
    u32 cpu;
    u16 kernel_frames;
    u16 user_frames;
    u8 user_end; /* enum user_end */
    u8 kernel_thread; /* 1 for a thread of the kernel, which is no process with a file and mappings */
    u16 fp_frames; /* frames of the user part that were found by frame pointers alone */
    u32 chance; /* 0: of a CPU; else of a thread that begins to wait, recorded with this chance of 2^32, of which 2^32 - 1 means always */
    u32 executable; /* number of the file that the process runs, told once of each program that is met; 0: not told */
    u32 labels; /* behind the frames */
    char comm[COMM_BYTES]; /* name of the thread, NUL-terminated */
};

/* What the program itself says of what it does: see goroutine.h. What is behind the lengths is nothing. */
#define LABELS_MAX 8
#define LABEL_NAME_BYTES 30
#define LABEL_VALUE_BYTES 64

struct label {
    u8 name_bytes;
    u8 value_bytes;
    u8 name[LABEL_NAME_BYTES];
    u8 value[LABEL_VALUE_BYTES];
};

_Static_assert(sizeof(struct label) == 96, "");

/* When the thread `tid`, which has waited since then, may run again; both on CLOCK_MONOTONIC. */
struct wait_end {
    u64 since_ktime_ns;
    u64 ktime_ns;
    u32 tid;
    u32 zero;
};

_Static_assert(sizeof(struct wait_end) == 24, "");
_Static_assert(sizeof(struct sample_header) == 72, "");
_Static_assert(__builtin_offsetof(struct sample_header, ktime_ns) == 0, "");
_Static_assert(__builtin_offsetof(struct sample_header, start_boottime_ns) == 8, "");
_Static_assert(__builtin_offsetof(struct sample_header, exec_id) == 16, "");
_Static_assert(__builtin_offsetof(struct sample_header, pid) == 24, "");
_Static_assert(__builtin_offsetof(struct sample_header, tid) == 28, "");
_Static_assert(__builtin_offsetof(struct sample_header, cpu) == 32, "");
_Static_assert(__builtin_offsetof(struct sample_header, kernel_frames) == 36, "");
_Static_assert(__builtin_offsetof(struct sample_header, user_frames) == 38, "");
_Static_assert(__builtin_offsetof(struct sample_header, user_end) == 40, "");
_Static_assert(__builtin_offsetof(struct sample_header, kernel_thread) == 41, "");
_Static_assert(__builtin_offsetof(struct sample_header, fp_frames) == 42, "");
_Static_assert(__builtin_offsetof(struct sample_header, chance) == 44, "");
_Static_assert(__builtin_offsetof(struct sample_header, executable) == 48, "");
_Static_assert(__builtin_offsetof(struct sample_header, labels) == 52, "");
_Static_assert(__builtin_offsetof(struct sample_header, comm) == 56, "");
