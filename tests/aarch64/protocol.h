/* What the tests and runner.c, which runs AArch64 kernels under qemu, write to each other in the
   file that both have mapped. A byte to the runner asks for the order in it to be done, a byte back
   tells that it is. */
#pragma once

#include <stdint.h>

enum {
  kSharedFile = 3, /* the runner's file descriptor of it */
  kGuestPage = 4096,
  kOrderBytes = 64 * kGuestPage,           /* at its beginning: one GuestOrder */
  kSharedBytes = kOrderBytes + (64 << 20), /* the rest is buffers */
  kMostBuffers = 64,
  kMostSizes = 64,
  kMostRanges = 4096
};

enum GuestVerb { kOpenCode, kCloseCode, kRunKernel };

typedef struct {
  int64_t verb;
  int64_t code;   /* given by kOpenCode, 0 where it failed */
  char text[512]; /* the path of a shared library, or the kernel's name; why opening failed */
  int64_t num_buffers, num_sizes, num_ranges;
  uint64_t first_elements[kMostBuffers]; /* places in the file */
  uint64_t guards[kMostBuffers];         /* pages that may not be touched while the kernel runs */
  int64_t sizes[kMostSizes];
  int64_t ranges[3 * kMostRanges]; /* phase, begin, end; up to the first that fails a check */
  int64_t result, details[2];
} GuestOrder;
