/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The helpers of bpf/types.h for programs that are compiled for a plain process. kernel.c defines them. No field is
 * relocated, because the C compiler lays out the structs of the fake kernel.
 */
#pragma once

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
u64 bpf_ktime_get_ns(void);
u64 bpf_ktime_get_boot_ns(void);
u32 bpf_get_prandom_u32(void);
u32 bpf_get_smp_processor_id(void);
u64 bpf_get_current_pid_tgid(void);
long bpf_get_current_comm(void *buffer, u32 bytes);
long bpf_get_stack(void *context, void *buffer, u32 bytes, u64 flags);
long bpf_probe_read_user(void *to, u32 bytes, const void *from);
long bpf_probe_read_kernel(void *to, u32 bytes, const void *from);
long bpf_probe_read_kernel_str(void *to, u32 bytes, const void *from);
long bpf_ringbuf_output(void *ring, void *data, u64 bytes, u64 flags);
u64 bpf_ringbuf_query(void *ring, u64 what);
struct task_struct *bpf_get_current_task_btf(void);
void *bpf_task_pt_regs(struct task_struct *task);
long bpf_loop(u32 iterations_max, void *callback, void *callback_context, u64 flags);

#define RELOCATED
#define FIELD_EXISTS(field) 1
#define FIELD_OFFSET(field) ((u64)&(field))
