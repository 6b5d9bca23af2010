/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The CPU sampler: on every tick of a CPU's clock event, one record of what runs there, whole stack included.
 *
 * What cannot be sent is counted in `dropped`, never silently lost. The idle task (pid 0) is not recorded: nothing runs.
 */
#include "record.h"
#include "registers.h"
#include "unwind.h"

/* Sized by user space to the number of CPUs and the frequency. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
    MAP_UINT(max_entries, 1 << 20);
} samples SEC(".maps");

/* A record is put together here: at 9 KB it does not fit the stack. A CPU's clock event cannot interrupt itself. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct scratch);
} scratches SEC(".maps");

/* Samples that did not fit the ring buffer, per CPU. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} dropped SEC(".maps");

struct program_image {
    u64 start_boottime_ns;
    u64 exec_id;
};

/* Which processes user space has been woken for; forgetting one costs one more wake-up. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
    MAP_UINT(max_entries, 4096);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct program_image);
} seen SEC(".maps");

/* Whether user space has not met this program yet: it may end within milliseconds, and its mappings with it. */
INLINE int is_new(const struct sample_header *header)
{
    u32 pid = header->pid;
    struct program_image image = { header->start_boottime_ns, header->exec_id };
    struct program_image *known = bpf_map_lookup_elem(&seen, &pid);
    if (known && known->start_boottime_ns == image.start_boottime_ns && known->exec_id == image.exec_id)
        return 0;
    bpf_map_update_elem(&seen, &pid, &image, BPF_ANY);
    return 1;
}

/* User space reads at its own pace, and is woken early only for a new program or a ring buffer that fills up. */
INLINE u64 wakeup(const struct sample_header *header)
{
    u64 half = bpf_ringbuf_query(&samples, BPF_RB_RING_SIZE) / 2;
    if (is_new(header) || bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > half)
        return BPF_RB_FORCE_WAKEUP;
    return BPF_RB_NO_WAKEUP;
}

INLINE void fill_header(struct sample_header *header, struct task_struct *task, u64 pid_tgid)
{
    header->ktime_ns = bpf_ktime_get_ns();
    header->start_boottime_ns = task->group_leader->start_boottime;
    header->exec_id = task->self_exec_id;
    header->pid = pid_tgid >> 32;
    header->tid = (u32)pid_tgid;
    header->cpu = bpf_get_smp_processor_id();
    header->kernel_frames = 0;
    header->user_frames = 0;
    header->fp_frames = 0;
    header->user_end = USER_END_NONE;
    header->kernel_thread = (task->flags & PF_KTHREAD) != 0;
    bpf_get_current_comm(header->comm, sizeof(header->comm));
}

/* The kernel part, and with it the scratch frames [0, kernel_frames). */
INLINE void walk_kernel(struct scratch *scratch, struct perf_event_context *context)
{
    long bytes = bpf_get_stack(context, scratch->frames, KERNEL_FRAMES_MAX * sizeof(u64), 0);
    if (bytes < (long)sizeof(u64)) {
        scratch->frames[0] = PC(&context->registers);
        scratch->header.kernel_frames = 1;
        return;
    }
    scratch->header.kernel_frames = bytes / sizeof(u64);
}

/* The user part. Kernel threads and the kernel's own workers inside a process have none. */
INLINE void walk_task(struct scratch *scratch, struct perf_event_context *context, struct task_struct *task, int in_user)
{
    struct registers registers;
    if (!task->mm || task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
        return;
    if (in_user) {
        registers = context->registers;
        unwind_user(scratch, task, &registers, 0);
        return;
    }
    if (bpf_probe_read_kernel(&registers, sizeof(registers), bpf_task_pt_regs(task)) || !IS_USER(&registers))
        return;
    unwind_user(scratch, task, &registers, IS_SYSCALL(&registers));
}

SEC("perf_event")
int sample_cpu(struct perf_event_context *context)
{
    u32 zero = 0;
    u64 pid_tgid = bpf_get_current_pid_tgid();
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch || (u32)pid_tgid == 0)
        return 0;

    struct task_struct *task = bpf_get_current_task_btf();
    int in_user = IS_USER(&context->registers);
    fill_header(&scratch->header, task, pid_tgid);
    if (!in_user)
        walk_kernel(scratch, context);
    walk_task(scratch, context, task, in_user);

    u64 frames = scratch->header.kernel_frames + scratch->header.user_frames;
    /* Never so, but the verifier cannot know. */
    if (frames > KERNEL_FRAMES_MAX + USER_FRAMES_MAX)
        frames = KERNEL_FRAMES_MAX + USER_FRAMES_MAX;
    u64 bytes = sizeof(struct sample_header) + frames * sizeof(u64);
    if (bpf_ringbuf_output(&samples, scratch, bytes, wakeup(&scratch->header))) {
        u64 *count = bpf_map_lookup_elem(&dropped, &zero);
        if (count)
            *count += 1;
    }
    return 0;
}

/* "GPL" in it is what the kernel asks for before it gives a program bpf_probe_read_user() and bpf_get_stack(). */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
