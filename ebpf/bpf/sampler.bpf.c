/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The CPU sampler sends one record, with the whole stack, on every tick of a CPU's clock event. If waits are recorded,
 * the off-CPU sampler sends two records for each wait that off_cpu.h chooses: one when the thread begins to wait, and
 * one when it may run again.
 *
 * Records that cannot be sent are counted in `dropped`. The idle task (pid 0) is not recorded.
 */
#include "mappings/mapped.h"
#include "off_cpu.h"
#include "record.h"
#include "registers.h"
#include "runtimes/new_functions.h"
#include "runtimes/thread_context.h"
#include "scratch.h"
#include "types.h"
#include "unwind.h"

/* The ring buffer of records. User space sets its size by the number of CPUs and the frequency. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
    MAP_UINT(max_entries, 1 << 20);
} samples SEC(".maps");

/*
 * Memory in which a record is built. One per CPU is enough: a clock event cannot interrupt itself, nor a switch of
 * threads, which runs with interrupts off.
 */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct scratch);
} scratches SEC(".maps");

/* Two counters per CPU: records that did not fit the ring buffer, and waits for which no slot was free. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_UINT(max_entries, 2);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} dropped SEC(".maps");

/* Age of a process up to which it is young, in nanoseconds. */
#define YOUNG_NS 2000000000ull
/* Shortest time between two wake-ups for young processes, in nanoseconds. A busy host may always have some. */
#define YOUNG_WAKE_NS 20000000ull

/* Time of the last wake-up for a young process. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} woken SEC(".maps");

#define DROPPED_RECORD 0
#define DROPPED_WAIT 1

struct program {
    u64 start_boottime_ns;
    u64 exec_id;
    struct thread_pointer context; /* pointer to the thread's context, which user space finds; without a kind: none */
    u64 eager; /* if not 0, user space is woken for new functions; all are new for a new number, which it sets */
};

_Static_assert(sizeof(struct program) == 48, "");

/* Programs for which user space has been woken, by pid. If the map forgets a program, user space is woken once more for
 * it, and finds its context again. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
    MAP_UINT(max_entries, 4096);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct program);
} programs SEC(".maps");

/* Returns the program of a sample; 0 if user space has not been woken for it yet. */
INLINE struct program *find_program(const struct sample_header *header)
{
    u32 pid = header->pid;
    struct program *known = bpf_map_lookup_elem(&programs, &pid);
    int is_it = known && known->start_boottime_ns == header->start_boottime_ns && known->exec_id == header->exec_id;
    return is_it ? known : 0;
}

/*
 * Returns the memory (struct mm_struct) of a task as a number; 0 for threads of the kernel and the kernel's workers
 * inside a process. The pointer is read by a helper, because for a plain load the verifier would search all types of
 * the kernel.
 */
INLINE u64 user_memory(struct task_struct *task)
{
    u64 mm;
    return task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || READ_FIELD(mm, task, mm) ? 0 : mm;
}

/* Returns the number of the file that a process runs; 0 if it is not known. The file is found by the start of its
 * code. */
INLINE u32 find_executable(struct scratch *scratch, u64 mm)
{
    u64 start_code;
    struct mapped *mapped = &scratch->mapped;
    if (READ_FIELD(start_code, (struct mm_struct *)mm, start_code))
        return 0;
    if (!find_mapped(mapped, mm, start_code, scratch->header.pid))
        return 0;
    return mapped->number;
}

/* Returns 1 if user space is to be woken for a new function of a young process. CPUs that sample at the same time may
 * wake it more than once. */
INLINE int is_due_for_young(struct scratch *scratch)
{
    u32 zero = 0;
    u64 now_ns = scratch->header.ktime_ns;
    u64 *last = bpf_map_lookup_elem(&woken, &zero);
    /* Another CPU may have stored a later time. */
    if (!last || (s64)(now_ns - *last) < (s64)YOUNG_WAKE_NS ||
        bpf_ktime_get_boot_ns() - scratch->header.start_boottime_ns >= YOUNG_NS || !has_new_function(scratch, 0))
        return 0;
    *last = now_ns;
    return 1;
}

/*
 * Returns the wake-up flag of a record. User space reads the ring buffer periodically. It is woken earlier only if the
 * buffer is half full, for a new program, or for a new function of an eager program or of a young process. The mappings
 * of a new program may end within milliseconds, as it may itself. So the record of a new program also gets the number
 * of its file.
 */
INLINE u64 wakeup(struct scratch *scratch, u64 mm, const struct program *known)
{
    u64 half = bpf_ringbuf_query(&samples, BPF_RB_RING_SIZE) / 2;
    if (!known) {
        struct sample_header *header = &scratch->header;
        struct program program = { .start_boottime_ns = header->start_boottime_ns, .exec_id = header->exec_id };
        /* Inside execve, the file is not known yet: the next sample reports it. */
        if (!mm || (header->executable = find_executable(scratch, mm)))
            bpf_map_update_elem(&programs, &header->pid, &program, BPF_ANY);
        return BPF_RB_FORCE_WAKEUP;
    }
    if (known->eager ? has_new_function(scratch, known->eager) : is_due_for_young(scratch))
        return BPF_RB_FORCE_WAKEUP;
    return bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > half ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

INLINE void count_dropped(u32 what)
{
    u64 *count = bpf_map_lookup_elem(&dropped, &what);
    if (count)
        *count += 1;
}

INLINE void fill_header(struct sample_header *header, struct task_struct *task, u64 now_ns)
{
    u64 pid_tgid = bpf_get_current_pid_tgid();
    struct task_struct *leader;
    header->ktime_ns = now_ns;
    if (READ_FIELD(leader, task, group_leader) || READ_FIELD(header->start_boottime_ns, leader, start_boottime))
        header->start_boottime_ns = 0;
    header->exec_id = task->self_exec_id;
    header->pid = pid_tgid >> 32;
    header->tid = (u32)pid_tgid;
    header->cpu = bpf_get_smp_processor_id();
    header->kernel_frames = 0;
    header->user_words = 0;
    header->fp_frames = 0;
    header->user_end = USER_END_NONE;
    header->kernel_thread = (task->flags & PF_KTHREAD) != 0;
    header->chance = 0;
    header->executable = 0;
    header->labels = 0;
    header->links = 0;
    bpf_get_current_comm(header->comm, sizeof(header->comm));
}

/* Walks the kernel part of the stack, and stores it as the frames [0, kernel_frames). */
INLINE void walk_kernel(struct scratch *scratch, void *context)
{
    long bytes = bpf_get_stack(context, scratch->frames, KERNEL_FRAMES_MAX * sizeof(u64), 0);
    if (bytes >= (long)sizeof(u64))
        scratch->header.kernel_frames = bytes / sizeof(u64);
}

/* Reads the registers with which the task entered the kernel. Returns 0 if the task did not come from user mode. */
INLINE int read_user_registers(struct task_struct *task, struct registers *registers)
{
    return !bpf_probe_read_kernel(registers, sizeof(*registers), bpf_task_pt_regs(task)) && IS_USER(registers);
}

/* Returns 1 if the memory has code. Inside execve, a task already has its new memory, which has no code yet. */
INLINE int is_set_up(u64 mm)
{
    u64 start_code;
    return !READ_FIELD(start_code, (struct mm_struct *)mm, start_code) && start_code;
}

/* Sends the record. `mm` is 0 if there is no user part. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int send_record(struct scratch *scratch, u64 mm)
{
    if (!scratch)
        return 0;
    struct program *program = find_program(&scratch->header);
    if (program && program->context.kind)
        read_link(scratch, &program->context);
    u64 words = scratch->header.kernel_frames + scratch->header.user_words;
    u64 labels = scratch->header.labels, links = scratch->header.links;
    /* Never true, but the verifier cannot know. */
    if (words > KERNEL_FRAMES_MAX + USER_WORDS_MAX)
        words = KERNEL_FRAMES_MAX + USER_WORDS_MAX;
    if (labels > LABELS_MAX)
        labels = LABELS_MAX;
    if (links > LINKS_MAX)
        links = LINKS_MAX;
    u64 bytes = sizeof(struct sample_header) + words * sizeof(u64) + labels * sizeof(struct label) +
                links * sizeof(struct link);
    if (bpf_ringbuf_output(&samples, scratch, bytes, wakeup(scratch, mm, program)))
        count_dropped(DROPPED_RECORD);
    return 0;
}

SEC("perf_event")
int sample_cpu(struct perf_event_context *context)
{
    u32 zero = 0;
    struct registers registers;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch || (u32)bpf_get_current_pid_tgid() == 0)
        return 0;

    struct task_struct *task = bpf_get_current_task_btf();
    u64 mm = user_memory(task);
    fill_header(&scratch->header, task, bpf_ktime_get_ns());
    if (IS_USER(&context->registers)) {
        registers = context->registers;
        if (mm)
            unwind_user(scratch, task, mm, &registers, 0);
        send_record(scratch, mm);
        return 0;
    }
    walk_kernel(scratch, context);
    if (!scratch->header.kernel_frames) {
        scratch->frames[0] = PC(&context->registers);
        scratch->header.kernel_frames = 1;
    }
    if (mm && is_set_up(mm) && read_user_registers(task, &registers))
        unwind_user(scratch, task, mm, &registers, IS_SYSCALL(&registers));
    send_record(scratch, mm);
    return 0;
}

/* sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state) */
SEC("tp_btf/sched_switch")
int thread_switches(u64 *context)
{
    u32 zero = 0, site;
    struct registers registers;
    struct task_struct *task = (void *)context[1];
    u64 mm;
    if (context[0] || !(context[3] & TASK_WAITS) || !task->__state || !(mm = user_memory(task)))
        return 0;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch || !read_user_registers(task, &registers))
        return 0;
    u64 now_ns = bpf_ktime_get_ns();
    u32 chance = choose(task->pid, PC(&registers), SP(&registers), now_ns, &site);
    if (!chance)
        return 0;
    if (!begin_wait(task->pid, site, now_ns)) {
        count_dropped(DROPPED_WAIT);
        return 0;
    }
    fill_header(&scratch->header, task, now_ns);
    scratch->header.chance = chance;
    walk_kernel(scratch, context);
    if (is_set_up(mm))
        unwind_user(scratch, task, mm, &registers, IS_SYSCALL(&registers));
    send_record(scratch, mm);
    return 0;
}

/* sched_wakeup(struct task_struct *task) */
SEC("tp_btf/sched_wakeup")
int thread_wakes(u64 *context)
{
    struct task_struct *task = (void *)context[0];
    struct wait_end end = { .ktime_ns = bpf_ktime_get_ns(), .tid = task->pid };
    if (end_wait(end.tid, end.ktime_ns, &end.since_ktime_ns) &&
        bpf_ringbuf_output(&samples, &end, sizeof(end), BPF_RB_NO_WAKEUP))
        count_dropped(DROPPED_RECORD);
    return 0;
}

/* The kernel offers bpf_probe_read_user() and bpf_get_stack() only to programs with "GPL" in their license. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
