/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Records the functions that the loops of interpreters run, one in each step of the walk.
 */
#pragma once

#include "../runtimes.h"
#include "../scratch.h"
#include "perl.h"
#include "php.h"
#include "python.h"
#include "ruby.h"

/* Records one frame of the interpreter scratch->runtime. Returns 1 if the user part is full. Not inlined, so that the
 * verifier checks the function once. */
__attribute__((noinline)) int step_in_runtime(struct scratch *scratch)
{
    if (!scratch)
        return 1;
    struct runtime *runtime = find_runtime(scratch->runtime);
    struct runtime_walk *walk = &scratch->runtime_walks[scratch->runtime_walk % RUNTIME_WALKS];
    int is_last = 1;
    if (runtime && runtime->kind == RUNTIME_PYTHON)
        is_last = step_in_python(scratch, runtime, walk);
    if (runtime && runtime->kind == RUNTIME_PERL)
        is_last = step_in_perl(scratch, runtime, walk);
    if (runtime && runtime->kind == RUNTIME_RUBY)
        is_last = step_in_ruby(scratch, runtime, walk);
    if (runtime && runtime->kind == RUNTIME_PHP)
        is_last = step_in_php(scratch, runtime, walk);
    if (is_last) {
        scratch->runtime = 0;
        scratch->is_loop_passed = 1;
    }
    return scratch->user_frames >= USER_FRAMES_MAX;
}

/* Begins to record the frames of a runtime that was not on the stack before. Returns the index of the walk. */
INLINE u32 begin_walk(struct scratch *scratch, const struct runtime *runtime)
{
    u32 index = 0;
    for (u32 i = 0; i < RUNTIME_WALKS; i++)
        if (!scratch->runtime_walks[i].id) {
            index = i;
            break;
        }
    struct runtime_walk *walk = &scratch->runtime_walks[index];
    walk->id = runtime->id;
    walk->frame = walk->more[0] = walk->more[1] = walk->more[2] = 0;
    if (runtime->kind == RUNTIME_PYTHON)
        walk->frame = python_frame(scratch, runtime);
    if (runtime->kind == RUNTIME_PERL)
        begin_perl(scratch, runtime, walk);
    if (runtime->kind == RUNTIME_RUBY)
        begin_ruby(scratch, runtime, walk);
    if (runtime->kind == RUNTIME_PHP)
        walk->frame = php_frame(scratch, runtime);
    if (!walk->frame)
        push_missing_functions(scratch);
    return index;
}

/* Returns 1 if an address is in the loop of an interpreter. Its frames are then to be recorded. Not inlined, so that
 * the verifier checks the function once. */
__attribute__((noinline)) int enter_runtime(struct scratch *scratch, u64 address)
{
    if (!scratch)
        return 0;
    u32 id = scratch->mapped.runtime, index = RUNTIME_WALKS;
    struct runtime *runtime = find_runtime(id);
    if (!runtime || runtime->kind == RUNTIME_V8 || !is_in_loop(runtime, address))
        return 0;
    scratch->runtime = id;
    for (u32 i = 0; i < RUNTIME_WALKS; i++)
        if (scratch->runtime_walks[i].id == id)
            index = i;
    scratch->runtime_walk = index < RUNTIME_WALKS ? index : begin_walk(scratch, runtime);
    return 1;
}
