/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Layout of the records in the ring buffer `samples`. A sample is a header, followed by the frames, labels and links
 * that are in use:
 *
 * | struct sample_header, 72 bytes | kernel_frames x u64 | user_words x u64 |
 * | labels x struct label | links x struct link |
 *
 * The end of a wait is a struct wait_end, 24 bytes. It follows the sample taken at the start of the wait.
 *
 * Integers are in the byte order of the machine. Both parts of the stack are leaf first. A frame of the user part is a
 * return address minus one, which lies inside the calling instruction. Frames that are no return addresses are
 * unchanged: the leaf outside of a system call, code that a signal interrupted, and a signal trampoline. In the kernel
 * part, every frame but the leaf is a return address, without subtraction.
 *
 * src/record.rs reads the assertions below, and compares every offset with the Rust struct of the same name.
 */
#pragma once

#include "types.h"

/* Limit of bpf_get_stack(): the default of kernel.perf_event_max_stack. */
#define KERNEL_FRAMES_MAX 127
/* Largest number of frames of the user part, and of the words that they take. A stack of native frames takes up to 9 KB
 * in the ring buffer, and its walk takes about 40 us. */
#define USER_FRAMES_MAX 1024
#define USER_WORDS_MAX 2048
#define COMM_BYTES 16

/*
 * A frame of the user part in a file: FRAME_IN_FILE | number of the file | offset in the file, 40 bits. Any other frame
 * is an address of the process, in memory without a file or in a file without a number.
 */
#define FRAME_IN_FILE (1ull << 63)
#define FRAME_OFFSET_BITS 40
/*
 * A frame of a language runtime takes two words:
 * - FRAME_OF_RUNTIME | id of the runtime, 14 bits | address of the function's object, 48 bits;
 * - position in the function, 32 bits | identity of the object, 32 bits.
 * The header of the runtime may give bits of the address and the position another meaning.
 * The identity is 0 if the object could not be read. The address is 0, too, if functions are missing here.
 */
#define FRAME_OF_RUNTIME (1ull << 62)
#define FRAME_ID_SHIFT 48
/* Largest number of a file; the first file has number 1. */
#define FILE_NUMBERS (1u << 22)

/* Reason for the end of the user part of a stack. */
enum user_end {
    USER_END_NONE = 0,      /* no user part: a kernel thread */
    USER_END_ROOT = 1,      /* the outermost frame, by its rule or by a frame pointer of 0 */
    USER_END_BROKEN = 2,    /* no rule, or a rule or frame pointer that leads to no frame */
    USER_END_TRUNCATED = 3, /* more than USER_FRAMES_MAX frames */
    USER_END_COMPAT = 4,    /* a 32-bit program: only the leaf is recorded */
};

struct sample_header {
    u64 ktime_ns;          /* time of the sample, CLOCK_MONOTONIC */
    u64 start_boottime_ns; /* start of the process, CLOCK_BOOTTIME: differs if the pid was reused */
    u64 exec_id;           /* number of execve() calls of the process: differs if it runs another program */
    u32 pid;               /* process (the kernel's tgid), in the initial pid namespace */
    u32 tid;               /* thread, in the initial pid namespace */
    u32 cpu;
    u16 kernel_frames;
    u16 user_words; /* number of words that the frames of the user part take */
    u8 user_end;      /* enum user_end */
    u8 kernel_thread; /* 1 for a thread of the kernel, which has no file and no mappings */
    u16 fp_frames;    /* frames of the user part that were found by frame pointers */
    /* Inclusion probability of a wait times 2^32, where 2^32 - 1 means always; 0 for a sample of a CPU. */
    u32 chance;
    u32 executable; /* number of the file that the process runs, in one sample of each program; else 0 */
    u16 labels;     /* number of labels, which follow the frames */
    u16 links;      /* number of links, 0 or 1, which follow the labels */
    char comm[COMM_BYTES]; /* name of the thread, NUL-terminated */
};

/* Labels that the program sets itself (runtimes/goroutine.h). Bytes after the given lengths have no meaning. */
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

/* The span for which a thread works (runtimes/thread_context.h), with the bytes of W3C Trace Context. */
#define LINKS_MAX 1

struct link {
    u64 trace_id[2];
    u64 span_id;
};

_Static_assert(sizeof(struct link) == 24, "");

/* End of a wait: thread `tid` has waited from since_ktime_ns to ktime_ns, both on CLOCK_MONOTONIC. */
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
_Static_assert(__builtin_offsetof(struct sample_header, user_words) == 38, "");
_Static_assert(__builtin_offsetof(struct sample_header, user_end) == 40, "");
_Static_assert(__builtin_offsetof(struct sample_header, kernel_thread) == 41, "");
_Static_assert(__builtin_offsetof(struct sample_header, fp_frames) == 42, "");
_Static_assert(__builtin_offsetof(struct sample_header, chance) == 44, "");
_Static_assert(__builtin_offsetof(struct sample_header, executable) == 48, "");
_Static_assert(__builtin_offsetof(struct sample_header, labels) == 52, "");
_Static_assert(__builtin_offsetof(struct sample_header, links) == 54, "");
_Static_assert(__builtin_offsetof(struct sample_header, comm) == 56, "");
