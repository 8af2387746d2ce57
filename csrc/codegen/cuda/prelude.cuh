// mlcc's prelude: what the text of every kernel is written in. No header is needed: NVRTC knows CUDA's
// functions by itself, and the emulator declares those of the same names. Everything that only a GPU
// compiler understands stands in the parts under __CUDACC_RTC__, each with a twin in C++.
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#define MLCC_INLINE static __device__ __forceinline__
// Behind the threads of a block may stand how many blocks at least shall fit a multiprocessor.
#define MLCC_KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name
#ifdef __CUDACC_RTC__
#define MLCC_UNROLL _Pragma("unroll")
#define MLCC_UNROLL_BY(n) MLCC_PRAGMA(unroll n)
#define MLCC_PRAGMA(text) _Pragma(#text)
#define MLCC_DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#define touch(address, bytes, is_store)
#define begin_iteration()
#else
#define MLCC_UNROLL
#define MLCC_UNROLL_BY(n)
#define MLCC_DYNAMIC_SHARED(name) MLCC_EMULATOR_DYNAMIC_SHARED(char, name)
MLCC_INLINE void touch(const void* p, u32 bytes, bool is_store) {
  mlcc_emulator::touch(p, bytes, is_store);
}
MLCC_INLINE void begin_iteration() { mlcc_emulator::begin_iteration(); }
#endif

template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <bool wide> struct unsigned_of_width { typedef u32 type; };
template <> struct unsigned_of_width<true> { typedef u64 type; };
template <class T> using Unsigned = typename unsigned_of_width<sizeof(T) == 8>::type;
template <class T> constexpr bool is_half = is_same<T, f16>::value || is_same<T, bf16>::value;
template <class T> constexpr bool is_floating = is_same<T, f32>::value || is_same<T, f64>::value;

template <class To, class From> MLCC_INLINE To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- Conversions --------------------------------------------------------------------------------

MLCC_INLINE f32 to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
#ifdef __CUDACC_RTC__
MLCC_INLINE f32 to_f32(f16 x) {
  f32 r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
MLCC_INLINE void from_f32(f32 x, f16& r) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); }
MLCC_INLINE void from_f32(f32 x, bf16& r) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); }
MLCC_INLINE f32 min_of(f32 a, f32 b) {
  f32 r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MLCC_INLINE f32 max_of(f32 a, f32 b) {
  f32 r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#else
MLCC_INLINE f32 to_f32(f16 x) { return (f32)bit_copy<_Float16>(x.bits); }
MLCC_INLINE void from_f32(f32 x, f16& r) { r.bits = bit_copy<u16>((_Float16)x); }
MLCC_INLINE void from_f32(f32 x, bf16& r) {
  const u32 u = __float_as_uint(x);
  const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
  r.bits = is_nan ? (u16)0x7fff : (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
MLCC_INLINE f32 min_of(f32 a, f32 b) { return a != a ? a : b != b ? b : a < b ? a : b; }
MLCC_INLINE f32 max_of(f32 a, f32 b) { return a != a ? a : b != b ? b : a > b ? a : b; }
#endif
MLCC_INLINE f64 min_of(f64 a, f64 b) { return a != a ? a : b != b ? b : a < b ? a : b; }
MLCC_INLINE f64 max_of(f64 a, f64 b) { return a != a ? a : b != b ? b : a > b ? a : b; }
template <class T> MLCC_INLINE T min_of(T a, T b) { return a < b ? a : b; }
template <class T> MLCC_INLINE T max_of(T a, T b) { return a > b ? a : b; }

template <class To, class From> MLCC_INLINE To cast(From x) {
  if constexpr (is_same<To, From>::value) {
    return x;
  } else if constexpr (is_half<From>) {
    return cast<To>(to_f32(x));
  } else if constexpr (is_half<To>) {
    To r;
    from_f32((f32)x, r);
    return r;
  } else if constexpr (is_same<To, bool>::value) {
    return x != (From)0;
  } else if constexpr (is_floating<From> && is_same<To, u8>::value) {
    return (u8)(i64)x;  // as in torch's c10/util/TypeCast.h
  } else if constexpr (is_floating<From> && sizeof(To) < 4) {
    return (To)(i32)x;
  } else {
    return (To)x;
  }
}
MLCC_INLINE bf16 bf16_bits(u16 bits) { return bf16{bits}; }
MLCC_INLINE f16 f16_bits(u16 bits) { return f16{bits}; }

// ---- Arithmetic: integers wrap ------------------------------------------------------------------

template <class T> MLCC_INLINE T wrap_add(T a, T b) { return (T)((Unsigned<T>)a + (Unsigned<T>)b); }
template <class T> MLCC_INLINE T wrap_sub(T a, T b) { return (T)((Unsigned<T>)a - (Unsigned<T>)b); }
template <class T> MLCC_INLINE T wrap_mul(T a, T b) { return (T)((Unsigned<T>)a * (Unsigned<T>)b); }
template <class T> MLCC_INLINE T wrap_neg(T a) { return (T)((Unsigned<T>)0 - (Unsigned<T>)a); }
template <class T> MLCC_INLINE T abs_of(T a) { return a < (T)0 ? wrap_neg(a) : a; }
// Rounded towards minus infinity, and the remainder that belongs to it.
template <class T> MLCC_INLINE T floor_div(T a, T b) {
  const T q = (T)(a / b);
  return (T)(q - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}
template <class T> MLCC_INLINE T floor_mod(T a, T b) {
  const T r = (T)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
// Of numbers that are not negative.
template <class T> MLCC_INLINE T unsigned_div(T a, T b) { return (T)((Unsigned<T>)a / (Unsigned<T>)b); }
template <class T> MLCC_INLINE T unsigned_mod(T a, T b) { return (T)((Unsigned<T>)a % (Unsigned<T>)b); }
template <class T> constexpr bool is_unsigned = (T)-1 > (T)0;
template <class T> MLCC_INLINE bool is_shift(T n) {
  return (Unsigned<T>)n < sizeof(T) * 8 && !(n < 0);
}
template <class T> MLCC_INLINE T shift_left(T a, T n) {
  return is_shift(n) ? (T)((Unsigned<T>)a << n) : (T)0;
}
template <class T> MLCC_INLINE T shift_right(T a, T n) {
  return is_shift(n) ? (T)(a >> n) : (T)(a < 0 ? -1 : 0);
}
template <class T> MLCC_INLINE T shift_right_zero(T a, T n) {
  constexpr u32 unused = 8 * (sizeof(Unsigned<T>) - sizeof(T));
  const Unsigned<T> bits = (Unsigned<T>)((Unsigned<T>)a << unused) >> unused;
  return is_shift(n) ? (T)(bits >> n) : (T)0;
}

MLCC_INLINE bool is_nan(f32 x) { return x != x; }
MLCC_INLINE bool is_nan(f64 x) { return x != x; }
MLCC_INLINE bool is_inf(f32 x) { return (__float_as_uint(x) & 0x7fffffffu) == 0x7f800000u; }
MLCC_INLINE bool is_inf(f64 x) {
  return (bit_copy<u64>(x) & 0x7fffffffffffffffull) == 0x7ff0000000000000ull;
}
MLCC_INLINE bool sign_bit(f32 x) { return __float_as_uint(x) >> 31 != 0; }
MLCC_INLINE bool sign_bit(f64 x) { return bit_copy<u64>(x) >> 63 != 0; }
// Of exp(-|x|), which never overflows: small results keep their digits.
MLCC_INLINE f32 sigmoid(f32 x) {
  const f32 e = expf(-fabsf(x)), r = 1.0f / (1.0f + e);
  return x < 0.0f ? e * r : r;
}
MLCC_INLINE f64 sigmoid(f64 x) {
  const f64 e = exp(-fabs(x)), r = 1.0 / (1.0 + e);
  return x < 0.0 ? e * r : r;
}

// ---- Memory -------------------------------------------------------------------------------------

// Neighbours in memory, moved 16 bytes at a time.
template <class T, int n> struct __align__(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Pack { T v[n]; };

template <class T> MLCC_INLINE T load(const T* p) {
  touch(p, sizeof(T), false);
  return *p;
}
template <class T> struct same { typedef T type; };  // keeps a parameter from deciding T
template <class T> MLCC_INLINE void store(T* p, typename same<T>::type value) {
  touch(p, sizeof(T), true);
  *p = value;
}
template <int n, class T> MLCC_INLINE Pack<T, n> load_pack(const T* p) {
  touch(p, sizeof(T) * n, false);
  return *(const Pack<T, n>*)p;
}
template <class T, int n> MLCC_INLINE void store_pack(T* p, const Pack<T, n>& value) {
  touch(p, sizeof(T) * n, true);
  *(Pack<T, n>*)p = value;
}

// ---- Threads ------------------------------------------------------------------------------------

template <class T> MLCC_INLINE T shuffle_xor(u32 mask, T value, u32 distance) {
  if constexpr (sizeof(T) == 8)
    return bit_copy<T>(__shfl_xor_sync(mask, bit_copy<u64>(value), (int)distance));
  else if constexpr (sizeof(T) == 4)
    return bit_copy<T>(__shfl_xor_sync(mask, bit_copy<u32>(value), (int)distance));
  else if constexpr (sizeof(T) == 2)
    return bit_copy<T>((u16)__shfl_xor_sync(mask, (u32)bit_copy<u16>(value), (int)distance));
  else
    return (T)__shfl_xor_sync(mask, (u32)value, (int)distance);
}

// ---- Atomic updates -----------------------------------------------------------------------------

struct AddOp { template <class T> static __device__ T apply(T a, T b) {
  if constexpr (is_half<T>) return cast<T>(to_f32(a) + to_f32(b));
  else if constexpr (is_floating<T>) return a + b;
  else return wrap_add(a, b); } };
struct MinOp { template <class T> static __device__ T apply(T a, T b) {
  if constexpr (is_half<T>) return cast<T>(min_of(to_f32(a), to_f32(b)));
  else return min_of(a, b); } };
struct MaxOp { template <class T> static __device__ T apply(T a, T b) {
  if constexpr (is_half<T>) return cast<T>(max_of(to_f32(a), to_f32(b)));
  else return max_of(a, b); } };
struct AndOp { template <class T> static __device__ T apply(T a, T b) { return (T)(a & b); } };
struct OrOp { template <class T> static __device__ T apply(T a, T b) { return (T)(a | b); } };
struct XorOp { template <class T> static __device__ T apply(T a, T b) { return (T)(a ^ b); } };

// *p = Op(*p, value), indivisibly, by compare-and-swap of the word around it.
template <class Op, class T> MLCC_INLINE void atomic_update(T* p, typename same<T>::type value) {
  touch(p, sizeof(T), false);
  touch(p, sizeof(T), true);
  if constexpr (sizeof(T) >= 4) {
    typedef Unsigned<T> Word;
    if constexpr (is_same<Op, AddOp>::value && is_floating<T>) {
      atomicAdd(p, value);
    } else if constexpr (is_same<Op, AddOp>::value) {
      atomicAdd((Word*)p, (Word)value);
    } else {
      Word* word = (Word*)p;
      for (Word seen = *(volatile Word*)word, before;; seen = before) {
        before = atomicCAS(word, seen, bit_copy<Word>(Op::apply(bit_copy<T>(seen), value)));
        if (before == seen) break;
      }
    }
  } else {
    const u64 address = (u64)p;
    u32* word = (u32*)(address & ~3ull);
    const u32 shift = (u32)(address & 3ull) * 8, mask = (sizeof(T) == 1 ? 0xffu : 0xffffu) << shift;
    for (u32 seen = *(volatile u32*)word, before;; seen = before) {
      T old;
      const u32 part = (seen & mask) >> shift;
      memcpy(&old, &part, sizeof old);
      const T next = Op::apply(old, value);
      u32 bits = 0;
      memcpy(&bits, &next, sizeof next);
      before = atomicCAS(word, seen, (seen & ~mask) | (bits << shift));
      if (before == seen) break;
    }
  }
}

// ---- Checks -------------------------------------------------------------------------------------

// The first thread that gets here tells the host; the record's code comes last and is -1 until then.
struct FaultRecord { i64 code; i64 details[2]; i64* pending; };
MLCC_INLINE void report(FaultRecord* record, i64 code, i64 first, i64 second) {
  if (atomicCAS((u64*)&record->code, 0ull, ~0ull) != 0) return;
  *(volatile i64*)&record->details[0] = first;
  *(volatile i64*)&record->details[1] = second;
  __threadfence_system();
  *(volatile i64*)&record->code = code;
  __threadfence_system();
  *(volatile i64*)record->pending = 1;
}

