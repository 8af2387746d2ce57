/* Runs kernels for AArch64 in a process of their own: see protocol.h for who talks to it, guest.h for why. */
#include "protocol.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* runtime/kernel.h */
typedef struct {
  void *const *buffers;
  const int64_t *sizes;
  int64_t *details;
} KernelArgs;
typedef int64_t (*Phase)(const KernelArgs *args, int64_t begin, int64_t end);

static char *shared;

static void open_code(GuestOrder *order) {
  order->code = (int64_t)(intptr_t)dlopen(order->text, RTLD_NOW | RTLD_LOCAL);
  if (order->code == 0) snprintf(order->text, sizeof order->text, "%s", dlerror());
}

static void protect_guards(const GuestOrder *order, int protection) {
  for (int64_t i = 0; i < order->num_buffers; ++i)
    mprotect(shared + order->guards[i], kGuestPage, protection);
}

/* -1 where there is no such phase. */
static void run_kernel(GuestOrder *order) {
  void *buffers[kMostBuffers];
  for (int64_t i = 0; i < order->num_buffers; ++i) buffers[i] = shared + order->first_elements[i];
  const KernelArgs args = {buffers, order->sizes, order->details};
  order->result = 0;
  protect_guards(order, PROT_NONE);
  for (int64_t i = 0; i < order->num_ranges && order->result == 0; ++i) {
    const int64_t *range = order->ranges + 3 * i;
    char name[sizeof order->text + 32];
    snprintf(name, sizeof name, "%s.p%lld", order->text, (long long)range[0]);
    const Phase phase = (Phase)(intptr_t)dlsym((void *)(intptr_t)order->code, name);
    order->result = phase ? phase(&args, range[1], range[2]) : -1;
  }
  protect_guards(order, PROT_READ | PROT_WRITE);
}

int main(void) {
  shared = mmap(NULL, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, kSharedFile, 0);
  if (shared == MAP_FAILED) return 2;
  GuestOrder *order = (GuestOrder *)shared;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) == 1) {
    if (order->verb == kOpenCode) open_code(order);
    if (order->verb == kCloseCode) dlclose((void *)(intptr_t)order->code);
    if (order->verb == kRunKernel) run_kernel(order);
    if (write(STDOUT_FILENO, &byte, 1) != 1) return 3;
  }
  return 0;
}
