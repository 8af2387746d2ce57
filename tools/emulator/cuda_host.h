// CUDA C++ on the host: what a program's text may name beside the language. Stands before every
// program's text. Includes no header of others: reading <cmath> would take four times as long as
// compiling a kernel, and NVRTC has none either.
#pragma once

#include "kernel_api.h"

// Words of the language
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
// One block runs at a time, so that its shared variables are the program's only ones without a
// value: the section .bss, which the emulator fills with poison before each block.
#define __shared__ static

// `extern __shared__ type name[]` inside a function.
#define MLCC_EMULATOR_DYNAMIC_SHARED(type, name)                                                   \
  type* name = reinterpret_cast<type*>(mlcc_emulator::api->dynamic_shared)

typedef __SIZE_TYPE__ size_t;

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
void* memmove(void*, const void*, size_t) noexcept;
int printf(const char*, ...);
}

namespace mlcc_emulator {

// Not null, lest it lie in .bss.
static Api* api = reinterpret_cast<Api*>(1);

// To be called with each access to global memory, before it. An access of 2, 4, 8 or 16 bytes must
// be aligned to its size, as on the device; a longer one is made 16 bytes at a time.
inline __attribute__((always_inline)) void touch(const void* address, size_t bytes, bool is_store) {
  const size_t step = bytes < 16 ? bytes : 16;
  if ((reinterpret_cast<size_t>(address) & (step - 1)) != 0 && (bytes & (bytes - 1)) == 0)
    api->misaligned(address, bytes, is_store);
  if (api->watches_memory) api->touch(address, bytes, is_store);
}

// To be called by each thread at the head of each iteration; see emulator.h, byte counts.
inline void begin_iteration() {
  if (api->watches_memory) api->begin_iteration();
}

inline void wait_warp(WarpOp op, unsigned mask, int width, unsigned bytes) {
  WarpRequest& request = api->current->request;
  request.op = op;
  request.width = static_cast<unsigned char>(width);
  request.bytes = static_cast<unsigned short>(bytes);
  request.mask = mask;
  api->warp_barrier();
}

template <class T>
T shuffle(unsigned mask, T value, int source, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  T result;
  WarpRequest& request = api->current->request;
  request.source = source;
  request.payload = &value;
  request.gathered = reinterpret_cast<unsigned char*>(&result);
  wait_warp(WarpOp::kShuffle, mask, width, sizeof(T));
  return result;
}

// all[i] = what lane i brought; poison for lanes outside of `mask`. For twins of instructions in
// which a warp acts as one, such as mma.sync.
template <class T>
void gather(unsigned mask, const T& mine, T (&all)[kWarpSize]) {
  WarpRequest& request = api->current->request;
  request.payload = &mine;
  request.gathered = reinterpret_cast<unsigned char*>(&all[0]);
  wait_warp(WarpOp::kGather, mask, kWarpSize, sizeof(T));
}

inline unsigned ballot(unsigned mask, bool predicate) {
  api->current->request.predicate = predicate;
  wait_warp(WarpOp::kBallot, mask, kWarpSize, 0);
  return api->current->request.predicate;
}

inline int lane() { return api->current->lane; }

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <class T>
struct Identity {
  using type = T;
};

}  // namespace mlcc_emulator

// Vector types and indices
#define MLCC_EMULATOR_VECTORS(scalar, name, align4)                                                \
  struct name##1 { scalar x; };                                                                    \
  struct __align__(2 * sizeof(scalar)) name##2 { scalar x, y; };                                   \
  struct name##3 { scalar x, y, z; };                                                              \
  struct __align__(align4) name##4 { scalar x, y, z, w; };                                         \
  inline name##1 make_##name##1(scalar x) { return {x}; }                                          \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                             \
  inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
MLCC_EMULATOR_VECTORS(signed char, char, 4)
MLCC_EMULATOR_VECTORS(unsigned char, uchar, 4)
MLCC_EMULATOR_VECTORS(short, short, 8)
MLCC_EMULATOR_VECTORS(unsigned short, ushort, 8)
MLCC_EMULATOR_VECTORS(int, int, 16)
MLCC_EMULATOR_VECTORS(unsigned, uint, 16)
MLCC_EMULATOR_VECTORS(long long, longlong, 16)
MLCC_EMULATOR_VECTORS(unsigned long long, ulonglong, 16)
MLCC_EMULATOR_VECTORS(float, float, 16)
MLCC_EMULATOR_VECTORS(double, double, 16)
#undef MLCC_EMULATOR_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define threadIdx (mlcc_emulator::api->current->index)
#define blockIdx (mlcc_emulator::api->block)
#define blockDim (mlcc_emulator::api->block_size)
#define gridDim (mlcc_emulator::api->grid_size)
#define warpSize 32

// Barriers and what passes between the lanes of a warp
inline void __syncthreads() { mlcc_emulator::api->block_barrier(mlcc_emulator::BlockOp::kSync, 0); }
inline int __syncthreads_or(int predicate) {
  return mlcc_emulator::api->block_barrier(mlcc_emulator::BlockOp::kOr, predicate != 0);
}
inline int __syncthreads_and(int predicate) {
  return mlcc_emulator::api->block_barrier(mlcc_emulator::BlockOp::kAnd, predicate != 0);
}
inline int __syncthreads_count(int predicate) {
  return mlcc_emulator::api->block_barrier(mlcc_emulator::BlockOp::kCount, predicate != 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  mlcc_emulator::wait_warp(mlcc_emulator::WarpOp::kSync, mask, 32, 0);
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = mlcc_emulator::lane();
  return mlcc_emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), width);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = mlcc_emulator::lane(), source = lane - static_cast<int>(delta);
  return mlcc_emulator::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, width);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = mlcc_emulator::lane(), source = lane + static_cast<int>(delta);
  return mlcc_emulator::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, width);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = mlcc_emulator::lane(), source = lane ^ bits;
  return mlcc_emulator::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return mlcc_emulator::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return mlcc_emulator::ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return mlcc_emulator::ballot(mask, predicate == 0) == 0;
}
// Which lanes run together is not defined on the device either: this one alone does, here.
inline unsigned __activemask() { return 1u << mlcc_emulator::lane(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() {
  mlcc_emulator::api->trap("__trap()");
  __builtin_unreachable();
}
#define assert(condition)                                                                          \
  ((condition) ? void() : mlcc_emulator::api->trap("assertion failed: " #condition))

// Atomics: threads are interrupted only at barriers.
#define MLCC_EMULATOR_ATOMIC(name, expression)                                                     \
  template <class T>                                                                               \
  inline T name(T* address, typename mlcc_emulator::Identity<T>::type value) {                     \
    const T old = *address;                                                                        \
    *address = static_cast<T>(expression);                                                         \
    return old;                                                                                    \
  }
MLCC_EMULATOR_ATOMIC(atomicAdd, old + value)
MLCC_EMULATOR_ATOMIC(atomicSub, old - value)
MLCC_EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
MLCC_EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
MLCC_EMULATOR_ATOMIC(atomicAnd, old& value)
MLCC_EMULATOR_ATOMIC(atomicOr, old | value)
MLCC_EMULATOR_ATOMIC(atomicXor, old ^ value)
MLCC_EMULATOR_ATOMIC(atomicExch, value)
MLCC_EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
MLCC_EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef MLCC_EMULATOR_ATOMIC
template <class T>
inline T atomicCAS(T* address, typename mlcc_emulator::Identity<T>::type expected,
                   typename mlcc_emulator::Identity<T>::type value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

// Loads and stores with cache hints
template <class T>
inline T __ldg(const T* address) {
  return *address;
}
template <class T>
inline T __ldcg(const T* address) {
  return *address;
}
template <class T>
inline T __ldcs(const T* address) {
  return *address;
}
template <class T>
inline T __ldca(const T* address) {
  return *address;
}
template <class T>
inline void __stcg(T* address, T value) {
  *address = value;
}
template <class T>
inline void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
inline void __stwt(T* address, T value) {
  *address = value;
}
inline size_t __cvta_generic_to_shared(const void* address) {
  return reinterpret_cast<size_t>(address);
}
inline long long clock64() { return static_cast<long long>(__builtin_ia32_rdtsc()); }

// Bits
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long all = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> 4 * i & 0xf;
    unsigned byte = static_cast<unsigned>(all >> 8 * (choice & 7)) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned count) {
  return (static_cast<unsigned long long>(high) << 32 | low) << (count & 31) >> 32;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned count) {
  return (static_cast<unsigned long long>(high) << 32 | low) >> (count & 31);
}
inline int __mulhi(int a, int b) { return static_cast<long long>(a) * b >> 32; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned long long>(a) * b >> 32;
}
inline long long __mul64hi(long long a, long long b) { return static_cast<__int128>(a) * b >> 64; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned __int128>(a) * b >> 64;
}
