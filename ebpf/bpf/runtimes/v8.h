/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the functions of V8's frames, in Node.js 12 and later on x86-64.
 *
 * Nearly all frames of JavaScript are found by frame pointers:
 *
 * | bytecode offset | bytecodes | arguments | closure | context | caller's frame pointer | return address |
 *
 * The context is a pointer to an object, and other frames of V8 have an even number there. The interpreter and other
 * builtin functions are in the file of V8, so their native frame is recorded, too, after the function. Code that V8
 * makes at run time is in memory without a file. In such memory, a program has frames of V8 if it had one in V8's file
 * before.
 *
 * The program may move and change all objects. The identity of a function is therefore a hash of numbers that it keeps.
 */
#pragma once

#include "../mappings/mapped.h"
#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../tables.h"
#include "../types.h"
#include "../window.h"

/* Indices of offsets[], in bytes unless another unit is given. */
enum v8_offset {
    V8_SHARED = 0,        /* in a closure: its function */
    V8_ARRAY = 1,         /* in the copied frame: the bytecodes, after the offset in them */
    V8_FIRST = 2,         /* from a pointer to bytecodes to the first of them */
    V8_FUNCTION_TYPE = 3, /* no offset: the number of the type of functions */
    V8_ARRAY_TYPE = 4,    /* no offset: that of bytecodes */
    V8_COUNTS = 5,        /* in a function: its counts of parameters, and then its flags */
    V8_UNIQUE = 6,        /* in a function: its unique number; 0: it has none */
    V8_SCRIPT = 7,        /* in a function: its script */
    V8_BUILTIN = 8,       /* in a function: the number of a builtin function */
    V8_FORM = 9,          /* no offset: bits of V8_*_FORM */
    V8_ALIGN = 10,        /* no offset: alignment of code, as a power of two */
};

#define V8_OLD_TOKEN_FORM 1 /* the order of the counts is that of V8 7 */

/* Number of bytes of a function that are copied. */
#define V8_FUNCTION_BYTES 72
/* In an object's map: the number of the type. */
#define V8_TYPE 12
/* In a script: its number. */
#define V8_SCRIPT_ID 64

/* Words of a frame that are copied, and the index of the word at the frame pointer. */
#define V8_FRAME_WORDS 8
#define V8_FRAME_POINTER 6

/* Lower bits of the address of a recorded frame. */
#define V8_INTERPRETED 1
#define V8_COMPILED 2
#define V8_BUILTIN_FUNCTION 3
/* Bit of an address that is that of code, because its function is not known. */
#define V8_CODE (1ull << 47)
#define V8_NO_POSITION 0xffffffff

/* Effect of a frame of V8 on the walk. */
enum v8_step {
    V8_NOTHING = 0, /* go on with the native frame */
    V8_FRAME = 1,   /* the frame is recorded: step by the frame pointer */
    V8_CALLED = 2,  /* the return address is on top of the stack */
    V8_PUSHED = 3,  /* the caller's frame pointer is on top of the stack, and the return address after it */
};

#define V8_PROGRAMS_MAX 1024

/* The id is 0 if the kernel has no ids of memories. */
struct v8_key {
    u64 mm;
    u64 id;
};

struct v8_program {
    u64 function_map; /* maps of functions and of bytecodes; 0: not known yet */
    u64 array_map;
    u32 runtime; /* id in `runtimes` */
    u32 zero;
};

/* Programs that run V8. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
    MAP_UINT(max_entries, V8_PROGRAMS_MAX);
    MAP_TYPE(key, struct v8_key);
    MAP_TYPE(value, struct v8_program);
} v8_programs SEC(".maps");

INLINE void v8_key_of(struct v8_key *key, u64 mm)
{
    struct mm_struct *memory = (void *)mm;
    key->mm = mm;
    if (!FIELD_EXISTS(memory->context.ctx_id) || READ_FIELD(key->id, memory, context.ctx_id))
        key->id = 0;
}

/* Returns the V8 of the program, and copies what is known of the program; 0 if it has none. */
INLINE struct runtime *v8_of(struct scratch *scratch, u64 mm)
{
    struct v8_key key;
    if (!scratch->is_v8_known) {
        v8_key_of(&key, mm);
        struct v8_program *program = bpf_map_lookup_elem(&v8_programs, &key);
        scratch->v8 = program ? program->runtime : 0;
        scratch->v8_function_map = program ? program->function_map : 0;
        scratch->v8_array_map = program ? program->array_map : 0;
        scratch->is_v8_known = 1;
    }
    struct runtime *runtime = scratch->v8 ? find_runtime(scratch->v8) : 0;
    return runtime && runtime->kind == RUNTIME_V8 ? runtime : 0;
}

/* Stores what is known of the program. */
INLINE void store_v8(const struct scratch *scratch, u64 mm)
{
    struct v8_key key;
    struct v8_program program = {
        .function_map = scratch->v8_function_map,
        .array_map = scratch->v8_array_map,
        .runtime = scratch->v8,
    };
    v8_key_of(&key, mm);
    bpf_map_update_elem(&v8_programs, &key, &program, BPF_ANY);
}

INLINE int is_v8_object(u64 word) { return (word & 3) == 1; }

/* Returns 1 if `map` is the map of objects of a type. `known` has such a map, and gets this one. */
INLINE int is_v8_map(struct scratch *scratch, u64 mm, u64 *known, u64 map, u16 type)
{
    u16 found;
    if (map == *known)
        return 1;
    if (!is_v8_object(map) || bpf_probe_read_user(&found, sizeof(found), (void *)(map - 1 + V8_TYPE)) ||
        found != type)
        return 0;
    *known = map;
    store_v8(scratch, mm);
    return 1;
}

/* Returns the identity of the copied function. */
INLINE u32 v8_identity(const struct scratch *scratch, const struct runtime *runtime)
{
    const u16 *offsets = runtime->offsets;
    u64 number = 0, builtin = object_word(scratch, offsets[V8_BUILTIN]);
    if (offsets[V8_UNIQUE])
        number = object_int(scratch, offsets[V8_UNIQUE]);
    else if (bpf_probe_read_user(&number, sizeof(number),
                                 (void *)((object_word(scratch, offsets[V8_SCRIPT]) & ~3ull) + V8_SCRIPT_ID)))
        number = 0;
    u64 mask = offsets[V8_FORM] & V8_OLD_TOKEN_FORM ? 0xffff0000ffff0000ull : 0x0000ffffffff0000ull;
    u64 mixed = (object_word(scratch, offsets[V8_COUNTS]) & mask) * HASH_FACTOR;
    mixed = (mixed ^ (object_word(scratch, offsets[V8_COUNTS] + 8) & 0xffffffff000007ffull)) * HASH_FACTOR;
    mixed = (mixed ^ number) * HASH_FACTOR;
    /* Only the number of a builtin function is a small integer. */
    mixed = (mixed ^ ((u32)builtin ? 0 : builtin)) * HASH_FACTOR;
    return mixed >> 32;
}

/* Records code whose function is not known. */
INLINE void push_v8_code(struct scratch *scratch, u64 pc)
{
    u64 code;
    u32 identity = 0;
    if (!bpf_probe_read_user(&code, sizeof(code), (void *)pc))
        identity = code * HASH_FACTOR >> 32 | 1;
    push_runtime_frame(scratch, pc | V8_CODE, pc, identity);
}

/* Returns the word of the frame at `fp` with an index, of the copied words of the stack. */
INLINE u64 v8_frame_word(const struct scratch *scratch, u64 fp, u32 index)
{
    u64 start = fp - V8_FRAME_POINTER * sizeof(u64);
    return window_word(&scratch->stack, start + index % V8_FRAME_WORDS * sizeof(u64));
}

/* Returns the function of the frame at `fp`, whose identity is in scratch->last then; 0 if the frame is none of a
 * function. Copies the words of the frame. */
INLINE u64 v8_function(struct scratch *scratch, const struct runtime *runtime, u64 mm, u64 sp, u64 fp)
{
    struct last_function *last = &scratch->last;
    u64 function;
    if (!read_window(&scratch->stack, fp - V8_FRAME_POINTER * sizeof(u64), V8_FRAME_WORDS * sizeof(u64), WINDOW_ABOVE))
        return 0;
    u64 closure = v8_frame_word(scratch, fp, V8_FRAME_POINTER - 2);
    /* A function that has not written its closure yet has an old word there. */
    if (!(v8_frame_word(scratch, fp, V8_FRAME_POINTER - 1) & 1) || !is_v8_object(closure) ||
        fp - 2 * sizeof(u64) < sp)
        return 0;
    if (closure == last->object)
        return last->words[0];
    if (bpf_probe_read_user(&function, sizeof(function), (void *)(closure - 1 + runtime->offsets[V8_SHARED])) ||
        !is_v8_object(function) || copy_object(scratch, function - 1, V8_FUNCTION_BYTES))
        return 0;
    if (!is_v8_map(scratch, mm, &scratch->v8_function_map, scratch->object[0], runtime->offsets[V8_FUNCTION_TYPE]))
        return 0;
    last->object = closure;
    last->words[0] = function - 1;
    last->identity = v8_identity(scratch, runtime);
    return function - 1;
}

/* Records the function of a frame of V8's builtin code, whose frame is set up. */
INLINE void push_v8_builtin(struct scratch *scratch, const struct runtime *runtime, u64 mm, u64 sp, u64 fp)
{
    u64 map, function = v8_function(scratch, runtime, mm, sp, fp);
    if (!function)
        return;
    u32 identity = scratch->last.identity | 1;
    /* The interpreter has the bytecodes and an offset in them in its frame. */
    u32 at = runtime->offsets[V8_ARRAY] / sizeof(u64);
    u64 array = v8_frame_word(scratch, fp, at), offset = v8_frame_word(scratch, fp, at - 1);
    int is_interpreted = !(u32)offset && is_v8_object(array) &&
                         !bpf_probe_read_user(&map, sizeof(map), (void *)(array - 1)) &&
                         is_v8_map(scratch, mm, &scratch->v8_array_map, map, runtime->offsets[V8_ARRAY_TYPE]);
    if (is_interpreted)
        push_runtime_frame(scratch, function | V8_INTERPRETED, (offset >> 32) - runtime->offsets[V8_FIRST], identity);
    else
        push_runtime_frame(scratch, function | V8_BUILTIN_FUNCTION, V8_NO_POSITION, identity);
}

/* Returns 1 if a call is before the address. */
INLINE int is_after_call(u64 address)
{
    u64 code;
    if (bpf_probe_read_user(&code, sizeof(code), (void *)(address - sizeof(code))))
        return 0;
    /* e8 and four bytes; or ff with 2 in the middle of the next byte, and 0, 1 or 4 bytes after it. */
    return (code >> 24 & 0xff) == 0xe8 || (code >> 48 & 0x38ff) == 0x10ff || (code >> 40 & 0x38ff) == 0x10ff ||
           (code >> 16 & 0x38ff) == 0x10ff || (code >> 8 & 0x38ff) == 0x10ff;
}

/*
 * Returns the effect of the innermost frame, in code that V8 made: V8_FRAME if its frame is set up.
 *
 * The frame is not set up in the first instructions of a function and in the last ones, which are the same in all
 * functions. Of a function that does not need its return address any more, old ones are on the stack. So a return
 * address on top of the stack alone proves nothing.
 */
INLINE int v8_leaf(const struct runtime *runtime, u64 pc, u64 sp, u64 fp)
{
    u64 code[2], start, words[2];
    u64 first = pc & ~((1ull << (runtime->offsets[V8_ALIGN] & 15)) - 1);
    if (bpf_probe_read_user(code, sizeof(code), (void *)(pc - 1)) ||
        bpf_probe_read_user(&start, sizeof(start), (void *)first) ||
        bpf_probe_read_user(words, sizeof(words), (void *)sp))
        return V8_FRAME;
    u64 here = code[0] >> 8 | code[1] << 56;
    /* push rbp; mov rbp, rsp */
    if ((u32)here == 0xe5894855)
        return V8_CALLED;
    if ((here & 0xffffff) == 0xe58948 && (code[0] & 0xff) == 0x55 && words[0] == fp)
        return V8_PUSHED;
    /* mov rbx, [rcx - x]; test, which jumps to the deoptimizer */
    if ((start & 0xffff00ffffffull) == 0x43f600598b48ull && pc - first <= 8)
        return V8_CALLED;
    /* mov ebx, x, or xor ebx, ebx; mov r12, x; a call that sets up the frame */
    if (((start & 0xffff00000000ffull) == 0xbc4900000000bbull || (u32)start == 0xbc49db33) && pc - first <= 15)
        return V8_CALLED;
    /* cmp rcx, x; jg; ret x; pop r10; lea rsp, [rsp + 8 * rcx]; ret */
    u32 two = here & 0xffff, three = here & 0xffffff, byte = here & 0xff;
    int is_exit = three == 0xf98348 || three == 0xf98148 || two == 0x037f || byte == 0xc2 || byte == 0xc3 ||
                  two == 0x5a41 || (u32)here == 0xcc648d48 || (u32)here == 0xcc248d48;
    return is_exit && is_after_call(words[0]) ? V8_CALLED : V8_FRAME;
}

/*
 * Records the function of a frame, if it is one of V8. Returns its effect on the walk, an enum v8_step. The rule of the
 * frame's code is in scratch->rule. Not inlined, so that the verifier checks the function once.
 */
__attribute__((noinline)) int step_in_v8(struct scratch *scratch, u64 mm, u64 pc, u64 sp, u64 fp)
{
    if (!scratch)
        return V8_NOTHING;
    struct runtime *runtime = v8_of(scratch, mm);
    if (scratch->mapped.number) {
        struct runtime *own = find_runtime(scratch->mapped.runtime);
        if (!own || own->kind != RUNTIME_V8 || !is_in_loop(own, pc + scratch->mapped.to_address))
            return V8_NOTHING;
        scratch->runtime = own->id;
        if (own != runtime) {
            scratch->v8 = own->id;
            scratch->v8_function_map = scratch->v8_array_map = 0;
            store_v8(scratch, mm);
        }
        /* Code without a frame of its own has the frame pointer of its caller. */
        if (scratch->rule.kind != RULE_REGISTER || scratch->rule.base != SP_NUMBER)
            push_v8_builtin(scratch, own, mm, sp, fp);
        scratch->runtime = 0;
        return V8_NOTHING;
    }
    if (!runtime)
        return V8_NOTHING;
    scratch->runtime = runtime->id;
    int step = scratch->is_exact ? v8_leaf(runtime, pc, sp, fp) : V8_FRAME;
    u64 function = step == V8_FRAME ? v8_function(scratch, runtime, mm, sp, fp) : 0;
    if (function) {
        /* The identity has the upper part of the address of the code, and half of the function's. */
        u32 identity = (pc >> 32) << 17 | (scratch->last.identity >> 16) << 1 | 1;
        push_runtime_frame(scratch, function | V8_COMPILED, pc, identity);
    } else {
        push_v8_code(scratch, pc);
    }
    scratch->runtime = 0;
    return step;
}
