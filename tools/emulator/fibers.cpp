#include "fibers.h"

#include <cstdint>
#include <new>

#include <sys/mman.h>

namespace mlcc_emulator {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = 64 * 1024;

}  // namespace

FiberStack::FiberStack() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<unsigned char*>(memory);
  mprotect(base_, kGuardBytes, PROT_NONE);
}

FiberStack::~FiberStack() {
  if (base_) munmap(base_, kGuardBytes + kStackBytes);
}

unsigned char* FiberStack::begin() const { return base_ + kGuardBytes; }

unsigned char* FiberStack::end() const { return base_ + kGuardBytes + kStackBytes; }

bool FiberStack::is_guard(const void* address) const {
  return address >= base_ && address < base_ + kGuardBytes;
}

#if defined(__x86_64__)

// void mlcc_emulator_switch(void** from, void* to): the registers that a call keeps go to the
// stack.
extern "C" void mlcc_emulator_switch(void** from, void* to);
asm(R"(
  .pushsection .text
  .globl mlcc_emulator_switch
  .hidden mlcc_emulator_switch
  .type mlcc_emulator_switch, @function
mlcc_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size mlcc_emulator_switch, . - mlcc_emulator_switch
  .popsection
)");

void prepare_fiber(FiberContext& context, const FiberStack& stack, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  auto* top = reinterpret_cast<uintptr_t*>(stack.end());
  *--top = 0;  // in place of a return address: the stack is aligned as after a call
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = 0;
  context.stack_pointer = top;
}

void switch_fiber(FiberContext& from, FiberContext& to) {
  mlcc_emulator_switch(&from.stack_pointer, to.stack_pointer);
}

#else

void prepare_fiber(FiberContext& context, const FiberStack& stack, void (*entry)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack.begin();
  context.context.uc_stack.ss_size = kStackBytes;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
}

void switch_fiber(FiberContext& from, FiberContext& to) { swapcontext(&from.context, &to.context); }

#endif

}  // namespace mlcc_emulator
