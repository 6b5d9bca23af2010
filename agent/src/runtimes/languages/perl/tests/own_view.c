/*
 * A library that is loaded into a Perl program. Perl's own view of the stack is printed by a copy of the program, so
 * the program itself is not changed, whatever it was doing when the signal came.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* sigaction() of the C library. */
extern int __sigaction(int signal, const struct sigaction *action, struct sigaction *old);

/* Perl's own handler of the signal. It runs that of the program, which prints the stack and ends the process. */
static void (*of_perl)(int, siginfo_t *, void *);

static void on_signal(int signal, siginfo_t *info, void *context)
{
    int status, child = syscall(SYS_fork);
    if (child == 0) {
        alarm(3);
        of_perl(signal, info, context);
        _exit(1);
    }
    while (waitpid(child, &status, 0) < 0)
        ;
    /* The test waits for this. */
    raise(SIGTRAP);
}

/* Perl calls this function in place of that of the C library. */
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
    struct sigaction changed;
    if (signal != SIGUSR1 || !action)
        return __sigaction(signal, action, old);
    of_perl = action->sa_sigaction;
    changed = *action;
    changed.sa_sigaction = on_signal;
    changed.sa_flags |= SA_SIGINFO | SA_RESTART;
    return __sigaction(signal, &changed, old);
}
