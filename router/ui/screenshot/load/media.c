/* Load for the screenshot: scales and blurs images, and writes them to temporary files. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))

enum { SIDE = 512, SMALL = 160 };

static uint8_t image[SIDE * SIDE], small_image[SMALL * SMALL], blurred[SMALL * SMALL];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

NOINLINE void decode_image(unsigned seed) {
  for (int i = 0; i < SIDE * SIDE; i++) {
    seed = seed * 1664525 + 1013904223;
    image[i] = (image[(i * 7) % (SIDE * SIDE)] + (seed >> 24)) / 2;
  }
}

NOINLINE uint8_t bilinear(double x, double y) {
  int left = (int)x, top = (int)y;
  double right = x - left, bottom = y - top;
  const uint8_t *p = &image[top * SIDE + left];
  return (uint8_t)((p[0] * (1 - right) + p[1] * right) * (1 - bottom) +
                   (p[SIDE] * (1 - right) + p[SIDE + 1] * right) * bottom);
}

NOINLINE void resize_image(void) {
  double step = (double)(SIDE - 2) / SMALL;
  for (int y = 0; y < SMALL; y++)
    for (int x = 0; x < SMALL; x++) small_image[y * SMALL + x] = bilinear(x * step, y * step);
}

NOINLINE void blur_image(int radius) {
  for (int y = 0; y < SMALL; y++)
    for (int x = radius; x < SMALL - radius; x++) {
      double sum = 0;
      for (int k = -radius; k <= radius; k++) sum += small_image[y * SMALL + x + k] * exp(-k * k / 8.0);
      blurred[y * SMALL + x] = (uint8_t)(sum / 5.0);
    }
}

NOINLINE void write_thumbnail(void) {
  FILE *file = tmpfile();
  if (!file) return;
  fwrite(blurred, 1, sizeof blurred, file);
  fflush(file);
  fclose(file);
}

NOINLINE void make_thumbnail(unsigned seed) {
  decode_image(seed);
  resize_image();
  blur_image(4);
  write_thumbnail();
}

int main(void) {
  double start = now();
  for (unsigned seed = 1;; seed++) {
    double began = now();
    for (int i = 0; i < 3; i++) make_thumbnail(seed);
    /* Uses a share of one core that rises and falls, so that the timeline moves. */
    double share = 0.16 + 0.06 * sin((now() - start) / 15);
    usleep((useconds_t)((now() - began) * (1 / share - 1) * 1e6));
  }
}
