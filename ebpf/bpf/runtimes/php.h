/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks the frames of PHP 7.3 and later.
 *
 * The globals of a thread point to the frame that runs, and each frame to its caller's. One loop runs a function and
 * all functions that it calls, until C code begins another loop. The first frame of a loop has a mark. Functions that
 * are written in C have frames, too, but no loop runs them.
 *
 * The program may change all of these structures while BPF reads them. The identity of a function's object is therefore
 * part of the frame. User space names the frame only if the object has the same identity then.
 */
#pragma once

#include "../record.h"
#include "../runtimes.h"
#include "../scratch.h"
#include "../types.h"
#include "../window.h"

/* Indices of offsets[], all in bytes. */
enum php_offset {
    PHP_CURRENT = 0,               /* in the globals: the frame that runs */
    PHP_INSTRUCTIONS = 1,          /* in a function: its instructions */
    PHP_COUNT = 2,                 /* in a function: their number */
    PHP_FILE = 3,                  /* in a function: the name of its file, and then the first and the last line */
    PHP_HANDLER = 4,               /* in a function that is written in C: its code */
    PHP_GENERATOR_FRAME = 5,       /* in a generator: its frame */
    PHP_GENERATOR_PARENT = 6,      /* in a generator: the one to which it delegates */
    PHP_GENERATOR_PLACEHOLDER = 7, /* in a generator: the frame that stands for it while another one runs for it */
    PHP_LOOP_BODY = 8,             /* in the loop's code: an instruction at which its frame is complete */
    PHP_LOOP_BYTES = 9,            /* no offset: size of the loop's frame with its return address; 0: not known */
};

/* Layout of a frame, in all versions. */
#define PHP_FRAME_INSTRUCTION 0
#define PHP_FRAME_FUNCTION 24
#define PHP_FRAME_THIS 32
#define PHP_FRAME_KIND 40
#define PHP_FRAME_CALLER 48
#define PHP_FRAME_BYTES 56
/* In a frame's kind: the first frame of a loop, if it runs a function of the program. */
#define PHP_FIRST_FRAME (1u << 17)
/* Layout of a function, in all versions, up to its instructions. */
#define PHP_TYPE 0
#define PHP_NAME 8
#define PHP_CLASS 16
#define PHP_FUNCTION_BYTES 112
#define PHP_INTERNAL_TYPE 1
/* Layout of an instruction, and of a string. */
#define PHP_INSTRUCTION_BYTES 32
#define PHP_ARGUMENT 20
#define PHP_LINE 24
#define PHP_OPCODE 28
#define PHP_STRING_HASH 8
#define PHP_STRING_WORDS 3 /* hash, length, and the first bytes */

/* Forms of a frame, in the lower bits of the address of its function. */
#define PHP_USER_FORM 0
#define PHP_CODE_FORM 1     /* code that is no function: that of a file that is included, or of eval */
#define PHP_INTERNAL_FORM 2 /* a function that is written in C */
#define PHP_MAIN_FORM 3     /* the code of the file with which the program begins */
#define PHP_NO_FORM 4       /* no function; such a frame is not recorded */
#define PHP_FORM_BITS 7ull

/* Opcodes of PHP 8.4 and later that call a function which is written in C, without a frame. The argument of such an
 * instruction is the number of the function. */
#define PHP_FRAMELESS_FIRST 204
#define PHP_FRAMELESS_LAST 207

/* Registers in which a loop keeps its frame and its instruction, by DWARF number. */
#define PHP_FRAME_REGISTER 14
#define PHP_INSTRUCTION_REGISTER 15

/* Largest number of generators that delegate to one another, and whose frames are recorded. */
#define PHP_GENERATORS_MAX 16

/* Words of the function that was recorded last: its instructions, and their size. */
#define PHP_LAST_INSTRUCTIONS 0
#define PHP_LAST_BYTES 1

/* Words of a walk: the first of the generators that delegate, and the number of them that are still to be recorded. */
#define PHP_GENERATOR 0
#define PHP_GENERATORS_LEFT 1

/* Returns the frame that the thread runs; 0 if it runs none. With threads, `extra` is the address of a word with the
 * offset of the globals in the thread's block. */
INLINE u64 php_frame(struct scratch *scratch, const struct runtime *runtime)
{
    u64 at, offset;
    u64 to_address = scratch->mapped.to_address;
    if (read_thread_pointer(&at, &runtime->threads[0], to_address) || !at)
        return 0;
    if (!runtime->extra)
        return at;
    if (bpf_probe_read_user(&offset, sizeof(offset), (void *)(runtime->extra - to_address)) ||
        bpf_probe_read_user(&at, sizeof(at), (void *)(at + offset + runtime->offsets[PHP_CURRENT])))
        return 0;
    return at;
}

/* The end of an instruction. */
struct php_instruction {
    u32 argument;
    u32 line;
    u32 opcode; /* the lower byte */
};

/* Reads the instruction that a frame runs, of the function in scratch->last. Returns 0 if it is not known.
 *
 * The loop keeps it in a register, and `stored` is the one that it has stored in the frame. A frame has none until its
 * function calls something. In code that PHP has compiled, the register is often older than what is stored. */
INLINE int php_read_instruction(struct php_instruction *read, const struct scratch *scratch,
                                u64 frame, u64 stored)
{
    u64 first = scratch->last.words[PHP_LAST_INSTRUCTIONS], bytes = scratch->last.words[PHP_LAST_BYTES];
    u64 in_register = scratch->registers[PHP_INSTRUCTION_REGISTER % REGISTERS];
    if (scratch->has_registers && scratch->registers[PHP_FRAME_REGISTER % REGISTERS] == frame &&
        in_register - first < bytes && (!scratch->php_compiled || stored - first >= bytes))
        stored = in_register;
    return stored - first < bytes &&
           !bpf_probe_read_user(read, sizeof(*read), (void *)(stored + PHP_ARGUMENT));
}

INLINE u64 php_mix(u64 identity, u64 word) { return (identity ^ word) * HASH_FACTOR; }

/* Returns the identity of the function in scratch->object, which is at `function`; 0 if it cannot be read. */
INLINE u32 php_identity(const struct scratch *scratch, const struct runtime *runtime, u64 function, u32 form)
{
    u64 words[PHP_STRING_WORDS], text;
    u64 identity = php_mix(0, object_word(scratch, PHP_NAME));
    identity = php_mix(identity, object_word(scratch, PHP_CLASS));
    if (form == PHP_INTERNAL_FORM)
        return php_mix(identity, object_word(scratch, runtime->offsets[PHP_HANDLER])) >> 32 | 1;
    identity = php_mix(identity, object_word(scratch, runtime->offsets[PHP_INSTRUCTIONS]));
    identity = php_mix(identity, object_int(scratch, runtime->offsets[PHP_COUNT]));
    if (bpf_probe_read_user(words, 2 * sizeof(u64), (void *)(function + runtime->offsets[PHP_FILE])))
        return 0;
    identity = php_mix(php_mix(identity, words[0]), words[1]);
    /* PHP frees the name before the function, whose object then still has the address, and another name may have the
     * address of the name. So the name's hash, length and first bytes are part of the identity. The code of a file has
     * no name, but that of the file. A process that was forked may never have read the text, whose page is shared: BPF
     * cannot read it then, and takes zeros in its place. */
    text = form == PHP_USER_FORM ? object_word(scratch, PHP_NAME) : words[0];
    if (bpf_probe_read_user(words, sizeof(words), (void *)(text + PHP_STRING_HASH)))
        words[0] = words[1] = words[2] = 0;
    for (int i = 0; i < PHP_STRING_WORDS; i++)
        identity = php_mix(identity, words[i]);
    return identity >> 32 | 1;
}

/* Records the function that an instruction calls without a frame, if it is such an instruction. */
INLINE void php_push_frameless(struct scratch *scratch, const struct runtime *runtime,
                               const struct php_instruction *instruction)
{
    u64 functions, function, words[2], handler;
    u8 opcode = instruction->opcode;
    if (opcode < PHP_FRAMELESS_FIRST || opcode > PHP_FRAMELESS_LAST ||
        read_thread_pointer(&functions, &runtime->threads[1], scratch->mapped.to_address) ||
        bpf_probe_read_user(&function, sizeof(function), (void *)(functions + instruction->argument * sizeof(u64))) ||
        bpf_probe_read_user(words, sizeof(words), (void *)(function + PHP_NAME)) ||
        bpf_probe_read_user(&handler, sizeof(handler), (void *)(function + runtime->offsets[PHP_HANDLER])))
        return;
    u64 identity = php_mix(php_mix(php_mix(0, words[0]), words[1]), handler);
    push_runtime_frame(scratch, (function & ~PHP_FORM_BITS) | PHP_INTERNAL_FORM, 0, identity >> 32 | 1);
}

/* Reads the function at an address into scratch->last. Returns 0 on success. */
INLINE long php_read_function(struct scratch *scratch, const struct runtime *runtime, u64 function)
{
    struct last_function *last = &scratch->last;
    last->object = 0;
    if (copy_object(scratch, function, PHP_FUNCTION_BYTES))
        return 1;
    int has_name = object_word(scratch, PHP_NAME) != 0;
    last->form = has_name ? PHP_USER_FORM : PHP_CODE_FORM;
    /* The first frame of a fiber has a function without a name. */
    if (object_byte(scratch, PHP_TYPE) == PHP_INTERNAL_TYPE)
        last->form = has_name ? PHP_INTERNAL_FORM : PHP_NO_FORM;
    last->words[PHP_LAST_INSTRUCTIONS] = object_word(scratch, runtime->offsets[PHP_INSTRUCTIONS]);
    last->words[PHP_LAST_BYTES] = (u64)object_int(scratch, runtime->offsets[PHP_COUNT]) * PHP_INSTRUCTION_BYTES;
    last->identity = last->form == PHP_NO_FORM ? 0 : php_identity(scratch, runtime, function, last->form);
    last->object = function;
    return 0;
}

/* Records the copied frame at an address. Returns 1 if a loop runs its function, 0 if the function is written in C, and
 * -1 if it cannot be read. */
INLINE int php_push(struct scratch *scratch, const struct runtime *runtime, u64 frame)
{
    const struct window *frames = &scratch->runtime_frames;
    u64 function = window_word(frames, frame + PHP_FRAME_FUNCTION);
    u64 stored = window_word(frames, frame + PHP_FRAME_INSTRUCTION);
    int is_outermost = window_word(frames, frame + PHP_FRAME_CALLER) == 0;
    struct php_instruction read = {};
    if ((!function || function != scratch->last.object) && php_read_function(scratch, runtime, function)) {
        push_missing_functions(scratch);
        return -1;
    }
    u32 form = scratch->last.form;
    if (form == PHP_NO_FORM)
        return 0;
    if (form == PHP_CODE_FORM && is_outermost)
        form = PHP_MAIN_FORM;
    if (form != PHP_INTERNAL_FORM && php_read_instruction(&read, scratch, frame, stored))
        php_push_frameless(scratch, runtime, &read);
    push_runtime_frame(scratch, (function & ~PHP_FORM_BITS) | form, read.line, scratch->last.identity);
    return form != PHP_INTERNAL_FORM;
}

/* Prepares the walk to record the generators that delegate, from the one whose placeholder is the copied frame at
 * `frame`. */
INLINE void php_count_generators(const struct scratch *scratch, const struct runtime *runtime,
                                 struct runtime_walk *walk, u64 frame)
{
    u64 generator = window_word(&scratch->runtime_frames, frame + PHP_FRAME_THIS), parent;
    u32 offset = runtime->offsets[PHP_GENERATOR_PARENT];
    walk->more[PHP_GENERATOR] = generator;
    /* Another frame without a function is a copy of its caller's, which C code makes before it calls a function. */
    if (frame - generator != runtime->offsets[PHP_GENERATOR_PLACEHOLDER])
        return;
    for (u32 i = 0; i < PHP_GENERATORS_MAX; i++) {
        if (bpf_probe_read_user(&parent, sizeof(parent), (void *)(generator + offset)) || !parent)
            return;
        walk->more[PHP_GENERATORS_LEFT] += 1;
        generator = parent;
    }
}

/* Records the frame of the last generator that is left. It runs in the loop of the generator to which it delegates, or
 * in none, so it ends no loop. */
INLINE int php_push_generator(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    u64 generator = walk->more[PHP_GENERATOR], frame;
    u64 left = walk->more[PHP_GENERATORS_LEFT] - 1;
    walk->more[PHP_GENERATORS_LEFT] = left;
    for (u32 i = 0; i < PHP_GENERATORS_MAX && i < left; i++)
        if (bpf_probe_read_user(&generator, sizeof(generator),
                                (void *)(generator + runtime->offsets[PHP_GENERATOR_PARENT])))
            return 0;
    if (bpf_probe_read_user(&frame, sizeof(frame), (void *)(generator + runtime->offsets[PHP_GENERATOR_FRAME])) ||
        !read_window(&scratch->runtime_frames, frame, PHP_FRAME_BYTES, WINDOW_NONE))
        return 0;
    php_push(scratch, runtime, frame);
    return 0;
}

/* Records the frame walk->frame, and goes on to its caller. Returns 1 after the last frame of the loop. The loop has
 * no frame for a moment when it begins, so a loop without a frame is no error. */
INLINE int step_in_php(struct scratch *scratch, const struct runtime *runtime, struct runtime_walk *walk)
{
    struct window *frames = &scratch->runtime_frames;
    u64 frame = walk->frame;
    if (walk->more[PHP_GENERATORS_LEFT])
        return php_push_generator(scratch, runtime, walk);
    if (!frame)
        return 1;
    /* Nearly all frames lie above their callers'. */
    if (!read_window(frames, frame, PHP_FRAME_BYTES, WINDOW_BELOW)) {
        walk->frame = 0;
        push_missing_functions(scratch);
        return 1;
    }
    int has_function = window_word(frames, frame + PHP_FRAME_FUNCTION) != 0;
    int is_first = (window_int(frames, frame + PHP_FRAME_KIND) & PHP_FIRST_FRAME) != 0;
    walk->frame = window_word(frames, frame + PHP_FRAME_CALLER);
    if (!has_function) {
        php_count_generators(scratch, runtime, walk, frame);
        return 0;
    }
    int is_user = php_push(scratch, runtime, frame);
    if (is_user < 0) {
        walk->frame = 0;
        return 1;
    }
    return is_user && is_first;
}
