/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reports of new files. A file that is seen for the first time gets a number and is reported to user space. The report
 * has everything that is known from the kernel and from the memory of the process. User space opens the file if it can.
 * If the process has ended by then, user space knows only the report.
 *
 * The ELF headers are read from the memory of the process, and never beyond the mapping in which they lie. They are
 * left out of the report if a page of that mapping was ever written, because the process may have chosen its content.
 * User space uses them only for a file that it cannot open.
 */
#pragma once

#include "../record.h"
#include "../tables.h"
#include "../types.h"
#include "vma.h"

/* Largest number of bytes of one name in a path, and of a whole path. Both count the zero that ends each name. */
#define NAME_BYTES_MAX 256
#define PATH_BYTES_MAX 1024
/* Largest number of names and mount points on the way from a file to the root. */
#define PATH_STEPS_MAX 48
#define BUILD_ID_BYTES_MAX 32
#define PROGRAM_HEADERS_MAX 24
#define NOTES_MAX 4
/* Number of further attempts to read the ELF headers of a file, if they were not in memory at first. */
#define UNREAD_TRIES 8
/* Largest number of mappings that are searched for the headers of a file. All of them lie before the mapping of its
 * code. */
#define MAPPINGS_BEFORE_MAX 3

struct vfsmount {
    struct dentry *mnt_root;
} RELOCATED;

struct mount {
    struct mount *mnt_parent;
    struct dentry *mnt_mountpoint;
    struct vfsmount mnt;
} RELOCATED;

struct qstr {
    const unsigned char *name;
} RELOCATED;

struct dentry {
    struct dentry *d_parent;
    struct qstr d_name;
} RELOCATED;

/* Report of a new file. */
struct new_file {
    struct file_key key;
    u32 number;
    u32 pid;
    u64 start; /* addresses [start, end) of process `pid` hold the file from `offset` on */
    u64 end;
    u64 offset;
    /* The segment that is mapped, as its program header describes it: its offset in the file, its ELF virtual address,
     * and its length. The length is 0 if the segment is not known. */
    u64 segment_offset;
    u64 segment_address;
    u64 segment_bytes;
    u32 build_id_bytes; /* length of the GNU build ID; 0: not known */
    u32 path_bytes;
    u8 build_id[BUILD_ID_BYTES_MAX];
    /* Names on the path: the file's own, that of its folder, and so on up to the root, each with a terminating zero.
     * Only the first path_bytes bytes are sent. */
    char path[PATH_BYTES_MAX];
};

#define NEW_FILE_HEAD_BYTES __builtin_offsetof(struct new_file, path)
_Static_assert(__builtin_offsetof(struct new_file, path) == 136, "");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
    MAP_UINT(max_entries, 1 << 16);
} new_files SEC(".maps");

/* Per-CPU memory in which a report is built, because a report is larger than a BPF program's stack. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct new_file);
} new_file_scratches SEC(".maps");

/* Number of files that got a number since the programs were loaded. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} files_met SEC(".maps");

#define ELF_MAGIC 0x464c457f
#define ELF_64_BIT 2
#define SEGMENT_LOADED 1
#define SEGMENT_NOTES 4
#define SEGMENT_RUNS 1
#define NOTE_GNU_BUILD_ID 3
#define NOTE_NAME_GNU 0x00554e47

struct elf_header {
    u32 magic;
    u8 class;
    u8 ident[11];
    u16 type;
    u16 machine;
    u32 version;
    u64 entry;
    u64 program_headers_at;
    u64 section_headers_at;
    u32 flags;
    u16 header_bytes;
    u16 program_header_bytes;
    u16 program_headers;
};

struct program_header {
    u32 type;
    u32 flags;
    u64 offset;
    u64 address;
    u64 physical_address;
    u64 file_bytes;
    u64 bytes;
    u64 align;
};

struct note_header {
    u32 name_bytes;
    u32 content_bytes;
    u32 type;
    u32 name; /* the first four bytes; the name "GNU" has no more */
};

/* Finds the GNU build ID among the ELF notes in [at, end), and copies it to `file`. Returns 0 if there is none. */
__attribute__((noinline)) int read_build_id(struct new_file *file, u64 at, u64 end)
{
    struct note_header note;
    if (!file)
        return 0;
    for (int i = 0; i < NOTES_MAX; i++) {
        if (at + sizeof(note) > end || bpf_probe_read_user(&note, sizeof(note), (void *)at))
            return 0;
        u32 bytes = note.content_bytes;
        if (note.type == NOTE_GNU_BUILD_ID && note.name_bytes == 4 && note.name == NOTE_NAME_GNU) {
            if (bytes == 0 || bytes > BUILD_ID_BYTES_MAX || at + sizeof(note) + bytes > end)
                return 0;
            if (bpf_probe_read_user(file->build_id, bytes, (void *)(at + sizeof(note))))
                return 0;
            file->build_id_bytes = bytes;
            return 1;
        }
        at += 12 + (((u64)note.name_bytes + 3) & ~3ull) + (((u64)bytes + 3) & ~3ull);
    }
    return 0;
}

/* Reads build ID and segment from the ELF headers, which the process has mapped in [start, end). Returns 0 if the
 * headers are not in memory. */
__attribute__((noinline)) int read_elf(struct new_file *file, u64 start, u64 end)
{
    struct elf_header header;
    struct program_header segment;
    if (!file || bpf_probe_read_user(&header, sizeof(header), (void *)start))
        return 0;
    if (header.magic != ELF_MAGIC || header.class != ELF_64_BIT || header.program_header_bytes != sizeof(segment))
        return 1;
    for (int i = 0; i < PROGRAM_HEADERS_MAX && i < header.program_headers; i++) {
        u64 at = header.program_headers_at + i * sizeof(segment);
        if (at > end - start - sizeof(segment))
            return 1;
        if (bpf_probe_read_user(&segment, sizeof(segment), (void *)(start + at)))
            return 0;
        if (segment.type == SEGMENT_NOTES && !file->build_id_bytes && segment.offset <= end - start &&
            segment.file_bytes <= end - start - segment.offset)
            read_build_id(file, start + segment.offset, start + segment.offset + segment.file_bytes);
        /* A mapping begins at the page in which its segment begins. */
        if (segment.type == SEGMENT_LOADED && segment.flags & SEGMENT_RUNS &&
            segment.offset >> 12 <= file->offset >> 12 && file->offset < segment.offset + segment.file_bytes) {
            file->segment_offset = segment.offset;
            file->segment_address = segment.address;
            file->segment_bytes = segment.bytes;
        }
    }
    return 1;
}

/* Returns 1 if a page of a mapping may be private to the process, because it was written once or is being written. */
INLINE int is_written(struct vm_area_struct *vma)
{
    void *own;
    return READ_FIELD(own, vma, anon_vma) || own;
}

/* Finds the mapping of the beginning of the file, which is before the mapping of its code, and reads the headers there.
 * Returns 0 if the headers are not in memory. */
INLINE int read_headers(struct new_file *file, u64 tree, u64 struct_file)
{
    struct vm_area_struct *vma = (void *)find_vma(tree, file->start);
    u64 start = file->start, end = file->end, offset = file->offset, of_file;
    for (int i = 0; i < MAPPINGS_BEFORE_MAX && offset; i++) {
        vma = (void *)find_vma(tree, start - 1);
        if (!vma || READ_FIELD(of_file, vma, vm_file) || of_file != struct_file)
            return 1;
        if (READ_FIELD(start, vma, vm_start) || READ_FIELD(end, vma, vm_end) || READ_FIELD(offset, vma, vm_pgoff))
            return 1;
    }
    if (offset || !vma)
        return 1;
    int is_read = read_elf(file, start, end);
    /* The check follows the read, because the process could write the mapping between a check and a later read. */
    if (is_written(vma)) {
        file->segment_bytes = 0;
        file->build_id_bytes = 0;
    }
    return is_read;
}

struct climb {
    struct new_file *file;
    struct dentry *dentry;
    struct vfsmount *mounted;
};

/* Appends one name of a path, or steps over a mount point. Returns 1 to end the loop: at the root, if the path is too
 * long, or if a read fails. */
static long climb_step(u32 index, struct climb *climb)
{
    struct dentry *parent, *root;
    struct mount *mount, *above;
    const unsigned char *name;
    struct new_file *file = climb->file;
    u32 at = file->path_bytes;
    if (READ_FIELD(root, climb->mounted, mnt_root) || READ_FIELD(parent, climb->dentry, d_parent))
        return 1;
    if (climb->dentry == root) {
        mount = (void *)climb->mounted - FIELD_OFFSET(((struct mount *)0)->mnt);
        if (READ_FIELD(above, mount, mnt_parent) || above == mount || READ_FIELD(climb->dentry, mount, mnt_mountpoint))
            return 1;
        climb->mounted = (void *)above + FIELD_OFFSET(((struct mount *)0)->mnt);
        return 0;
    }
    if (at > PATH_BYTES_MAX - NAME_BYTES_MAX || READ_FIELD(name, climb->dentry, d_name.name))
        return 1;
    long bytes = bpf_probe_read_kernel_str(file->path + at, NAME_BYTES_MAX, name);
    if (bytes <= 0 || climb->dentry == parent)
        return 1;
    file->path_bytes = at + bytes;
    climb->dentry = parent;
    return 0;
}

/* Reads the path from the file's name up to the root of the mount namespace. */
INLINE void read_path(struct new_file *report, struct file *file)
{
    struct climb climb = { .file = report };
    if (!READ_FIELD(climb.dentry, file, f_path.dentry) && !READ_FIELD(climb.mounted, file, f_path.mnt))
        bpf_loop(PATH_STEPS_MAX, climb_step, &climb, 0);
}

/* Builds the report of a file. Returns 0 if more can be reported later, once the headers of the file are in memory. */
INLINE int describe_file(struct new_file *report, const struct file_key *key, const struct mapping *mapping, u32 pid,
                         u64 tree)
{
    report->key = *key;
    report->pid = pid;
    report->start = mapping->start;
    report->end = mapping->end;
    report->offset = mapping->offset;
    report->segment_offset = 0;
    report->segment_address = 0;
    report->segment_bytes = 0;
    report->build_id_bytes = 0;
    report->path_bytes = 0;
    /* The vdso has no file. */
    if (!mapping->file)
        return 1;
    read_path(report, (struct file *)mapping->file);
    return read_headers(report, tree, mapping->file);
}

/* Sends a report. Returns 0 if the ring buffer is full. */
INLINE int send_report(struct new_file *report)
{
    u64 path_bytes = report->path_bytes;
    if (path_bytes > PATH_BYTES_MAX)
        path_bytes = PATH_BYTES_MAX;
    return !bpf_ringbuf_output(&new_files, report, NEW_FILE_HEAD_BYTES + path_bytes, BPF_RB_FORCE_WAKEUP);
}

/* Gives a number to a file that is seen for the first time, and reports it. Returns the number; 0 if `files` is
 * full. */
INLINE u32 number_file(const struct file_key *key, const struct mapping *mapping, u32 pid, u64 tree)
{
    u32 zero = 0;
    u32 *met = bpf_map_lookup_elem(&files_met, &zero);
    struct new_file *report = bpf_map_lookup_elem(&new_file_scratches, &zero);
    if (!met || !report)
        return 0;
    /* After FILE_NUMBERS files, numbers begin again. User space forgets all files long before that (REPORTS_MAX
     * in process/file/table.rs). */
    struct file_entry entry = { .number = __sync_fetch_and_add(met, 1) % FILE_NUMBERS + 1 };
    entry.unread = describe_file(report, key, mapping, pid, tree) ? 0 : UNREAD_TRIES;
    report->number = entry.number;
    if (bpf_map_update_elem(&files, key, &entry, BPF_NOEXIST)) {
        /* Another CPU was first, or the map is full. */
        struct file_entry *known = bpf_map_lookup_elem(&files, key);
        return known ? known->number : 0;
    }
    if (!send_report(report))
        bpf_map_delete_elem(&files, key);
    return entry.number;
}

/* Reports a file again if its headers could not be read before. For example, a program is not in memory yet inside
 * execve. */
INLINE void report_unread(struct file_entry *file, u32 tries, u32 number, const struct file_key *key,
                          const struct mapping *mapping, u32 pid, u64 tree)
{
    u32 zero = 0;
    struct new_file *report = bpf_map_lookup_elem(&new_file_scratches, &zero);
    file->unread = tries - 1;
    if (!report || !describe_file(report, key, mapping, pid, tree))
        return;
    report->number = number;
    /* The entry may belong to another file by now. */
    if (send_report(report) && file->number == number)
        file->unread = 0;
}
