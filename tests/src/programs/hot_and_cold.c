#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#define NOINLINE __attribute__((noinline, noipa))

static volatile uint64_t sink;

NOINLINE uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
/* gcc omits the frame of a function that calls nothing. A call of this function gives spin a frame. */
NOINLINE void nothing(void) { __asm__ volatile(""); }
NOINLINE void spin(void) {
  for (int i = 0; i < 20; i++) {
    for (int j = 0; j < 1000; j++) sink += j;
    nothing();
  }
  sink++;
}
NOINLINE void hot70(uint64_t length_ns) {
  uint64_t start = cpu_ns();
  while (cpu_ns() - start < length_ns) spin();
  sink++;
}
NOINLINE void cold30(uint64_t length_ns) {
  uint64_t start = cpu_ns();
  while (cpu_ns() - start < length_ns) spin();
  sink++;
}

int main(void) {
  const char *seconds = getenv("SECONDS");
  uint64_t end_ns = seconds ? atof(seconds) * 1e9 : 0, used[2] = {0, 0};
  /* Lengths vary, so that no timer can lock on to them. */
  while (end_ns == 0 || cpu_ns() < end_ns) {
    uint64_t length_ns = 500000 + rand() % 2000000, start = cpu_ns();
    int turn = used[0] * 3 > used[1] * 7;
    if (turn) cold30(length_ns);
    else hot70(length_ns);
    used[turn] += cpu_ns() - start;
  }
  return 0;
}
