// A library that a test preloads into a program.
// For that program, the system clock is wrong by a number of seconds. The file that WRONG_CLOCK names has
// this number, an int64 in native byte order, which may change while the program runs. Other clocks stay right.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *wrong_by;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("WRONG_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *memory = mmap(NULL, sizeof *wrong_by, PROT_READ, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) wrong_by = memory;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int result = syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && wrong_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *wrong_by;
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
