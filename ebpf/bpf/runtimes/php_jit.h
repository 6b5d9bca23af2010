/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the functions of PHP if no native frame of the loop was found. Code that PHP has compiled in memory has no
 * unwind table, and a fiber has a stack of its own.
 *
 * PHP's compiler is part of its cache. Its code is entered by a jump from the loop. It uses the stack of the loop's
 * frame, and up to 16 words more. So such a frame is one of the loop, too.
 */
#pragma once

#include "compiled.h"
#include "php.h"
#include "../scratch.h"
#include "../types.h"

/* Number of frames on one stack that can be those of compiled code. */
#define PHP_COMPILED_MAX 32
/* Number of words of the stack that compiled code may take below the frame of the loop. */
#define PHP_COMPILED_WORDS 16

#ifdef TARGET_X86_64
/* Returns 1 if the call before an address may be one of the loop at `loop`. Direct calls are e8 and the distance to the
 * loop. Others are ff and a pointer in memory, whose address is in a register or at a distance from the call. */
INLINE int follows_loop_call(u64 address, u64 loop)
{
    u8 code[CALL_BYTES + 1];
    int distance;
    if (read_call(code, address))
        return 0;
    __builtin_memcpy(&distance, code + 3, sizeof(distance));
    if (code[2] == 0xe8 && address + distance == loop)
        return 1;
    return (code[1] == 0xff && code[2] == 0x15) || (code[4] == 0xff && code[5] == 0x14) ||
           (code[4] == 0xff && (code[5] & 0xf8) == 0x50 && code[6] == 0) ||
           (code[5] == 0xff && (code[6] & 0xf8) == 0x10 && (code[6] & 6) != 4);
}
#else
INLINE int follows_loop_call(u64 address, u64 loop) { return 0; }
#endif

/* Begins to record the functions that the thread runs, unless their recording began before. Without threads of PHP,
 * they are those of the first thread. */
INLINE void begin_php(struct scratch *scratch, const struct runtime *runtime)
{
    u32 index = RUNTIME_WALKS;
    if (!runtime->extra && scratch->header.pid != scratch->header.tid)
        return;
    for (u32 i = 0; i < RUNTIME_WALKS; i++) {
        if (scratch->runtime_walks[i].id == runtime->id)
            return;
        if (!scratch->runtime_walks[i].id && index == RUNTIME_WALKS)
            index = i;
    }
    u64 frame = php_frame(scratch, runtime);
    if (!frame || index >= RUNTIME_WALKS)
        return;
    struct runtime_walk *walk = &scratch->runtime_walks[index];
    walk->id = runtime->id;
    walk->frame = frame;
    walk->more[0] = walk->more[1] = walk->more[2] = 0;
}

/* Returns the runtime in the program's own file, and sets scratch->mapped to this file; 0 if it has none. */
INLINE struct runtime *runtime_of_program(struct scratch *scratch, u64 mm)
{
    u64 start_code;
    struct mapped *mapped = &scratch->mapped;
    if (READ_FIELD(start_code, (struct mm_struct *)mm, start_code) ||
        !map_address(mapped, mm, start_code, scratch->header.pid))
        return 0;
    return find_runtime(mapped->runtime);
}

/* Looks for the loop's frame at `sp`, for code without a table. Returns 0 if there is none, and else one more than the
 * number of words that are below the frame. scratch->mapped is that of the loop then, and scratch->php_loop an address
 * in it. Not inlined, so that the verifier checks the function once.
 *
 * If there is none, the functions of a PHP program are recorded after its native frames. */
__attribute__((noinline)) int find_php_loop(struct scratch *scratch, u64 mm, u64 sp)
{
    u64 words[PHP_COMPILED_WORDS + 1];
    if (!scratch || scratch->php_compiled >= PHP_COMPILED_MAX)
        return 0;
    struct mapped *mapped = &scratch->mapped;
    u32 count = scratch->php_compiled;
    scratch->php_compiled = PHP_COMPILED_MAX;
    struct runtime *runtime = runtime_of_program(scratch, mm);
    if (!runtime || runtime->kind != RUNTIME_PHP)
        return 0;
    scratch->php_compiled = count + 1;
    u32 bytes = runtime->offsets[PHP_LOOP_BYTES];
    u64 loop = runtime->loop[0].start - mapped->to_address;
    if (bytes && !bpf_probe_read_user(words, sizeof(words), (void *)(sp + bytes - sizeof(u64))))
        for (u32 i = 0; i <= PHP_COMPILED_WORDS; i++)
            if (words[i] - mapped->start < mapped->end - mapped->start && follows_loop_call(words[i], loop)) {
                scratch->php_loop = loop + runtime->offsets[PHP_LOOP_BODY];
                return i + 1;
            }
    begin_php(scratch, runtime);
    return 0;
}

/* Begins to record the functions of PHP after a walk: one that ended in a file with PHP, or one that failed or ended in
 * memory without a file, in a program with PHP. Not inlined, so that the verifier checks the function once. */
__attribute__((noinline)) int begin_php_at_end(struct scratch *scratch, u64 mm)
{
    if (!scratch)
        return 0;
    struct runtime *runtime = find_runtime(scratch->mapped.runtime);
    if ((!runtime || runtime->kind != RUNTIME_PHP) && (scratch->end == USER_END_BROKEN || !scratch->mapped.has_file))
        runtime = runtime_of_program(scratch, mm);
    if (runtime && runtime->kind == RUNTIME_PHP)
        begin_php(scratch, runtime);
    return 0;
}
