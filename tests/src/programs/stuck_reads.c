// A library that a test preloads into a program.
// While the file that STUCK_READS names exists, reads of files do not return if the path of the file
// contains "/shard-". When the program runs its exit handlers, it creates the file that EXIT_HANDLERS names.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_stuck(int file) {
  const char *flag = getenv("STUCK_READS");
  if (!flag || access(flag, F_OK) != 0) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strstr(path, "/shard-") != NULL;
}

ssize_t pread64(int file, void *to, size_t size, off64_t offset) {
  while (is_stuck(file)) usleep(10000);
  return syscall(SYS_pread64, file, to, size, offset);
}

ssize_t pread(int file, void *to, size_t size, off_t offset) { return pread64(file, to, size, offset); }

__attribute__((destructor)) static void exit_handlers_run(void) {
  const char *path = getenv("EXIT_HANDLERS");
  if (path) close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}
