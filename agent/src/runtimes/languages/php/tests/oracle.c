/*
 * A library that is loaded into a PHP program. On a signal, a child of the program writes PHP's own view of the stack
 * to a file. So the program itself is not changed, whatever it was doing.
 *
 * The test defines STACK, which is the path of the file, and offsets and sizes in PHP's structures and code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char executor_globals[], execute_ex[];
extern int zend_eval_string(char *code, void *result, char *name);

static char code[] =
    "$text = '';"
    "foreach (debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS) as $entry) {"
    "    $class = isset($entry['class']) ? explode(chr(0), $entry['class'])[0] . '::' : '';"
    "    $file = isset($entry['file']) ? $entry['file'] : '';"
    "    $line = isset($entry['line']) ? $entry['line'] : 0;"
    "    $text .= $class . $entry['function'] . \"\\t\" . $file . \"\\t\" . $line . \"\\n\";"
    "}"
    "file_put_contents('" STACK "', $text, FILE_APPEND);";

static void print(const char *text)
{
    int file = open(STACK, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(file, text, strlen(text)) < 0)
        _exit(1);
    close(file);
}

/* Stores the instruction that runs in its frame, as PHP does before it calls a function. Tells if PHP's view will have
 * no place for the innermost function. This is so if the function has not called anything yet: its frame has no
 * instruction, so it gets the first one. It is also so between two generators. */
static void store_instruction(const greg_t *registers)
{
    char *frame = *(char **)(executor_globals + CURRENT);
    char *function = frame ? *(char **)(frame + 24) : 0;
    if (!function)
        print("without place\n");
    if (!function || *function == 1)
        return;
    unsigned long pc = registers[REG_RIP] - (unsigned long)execute_ex;
    char *in_register = (char *)registers[REG_R15];
    char *first = *(char **)(function + INSTRUCTIONS);
    unsigned long bytes = 32ul * *(unsigned *)(function + COUNT);
    int is_in_loop = pc < LOOP_BYTES || pc - OTHER_PART < OTHER_PART_BYTES;
    if (is_in_loop && (char *)registers[REG_R14] == frame && (unsigned long)(in_register - first) < bytes)
        *(char **)frame = in_register;
    if ((unsigned long)(*(char **)frame - first) >= bytes) {
        *(char **)frame = first;
        print("without place\n");
    }
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    int status, child = syscall(SYS_fork);
    if (child == 0) {
        alarm(3);
        store_instruction(((ucontext_t *)context)->uc_mcontext.gregs);
        zend_eval_string(code, 0, "stack");
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0)
        ;
    print(status ? "crashed\n" : "end\n");
}

/* Stops the program for the test. PHP calls this function in place of that of the C library. */
int usleep(useconds_t time) { return raise(SIGTRAP); }

__attribute__((constructor)) static void start(void)
{
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGUSR1, &action, 0);
}
