// CUDA C++ on the host, continued: mathematics. The functions are the C library's, those that it
// lacks are composed of them; results differ from the device's by a few units in the last place.
#pragma once

#include "cuda_host.h"

// name(double), namef(float) and name(float)
#define MLCC_EMULATOR_MATH1(name)                                                                  \
  extern "C" double name(double) noexcept;                                                         \
  extern "C" float name##f(float) noexcept;                                                        \
  inline float name(float x) { return name##f(x); }
#define MLCC_EMULATOR_MATH2(name)                                                                  \
  extern "C" double name(double, double) noexcept;                                                 \
  extern "C" float name##f(float, float) noexcept;                                                 \
  inline float name(float x, float y) { return name##f(x, y); }
MLCC_EMULATOR_MATH1(acos)
MLCC_EMULATOR_MATH1(acosh)
MLCC_EMULATOR_MATH1(asin)
MLCC_EMULATOR_MATH1(asinh)
MLCC_EMULATOR_MATH1(atan)
MLCC_EMULATOR_MATH1(atanh)
MLCC_EMULATOR_MATH1(cbrt)
MLCC_EMULATOR_MATH1(ceil)
MLCC_EMULATOR_MATH1(cos)
MLCC_EMULATOR_MATH1(cosh)
MLCC_EMULATOR_MATH1(erf)
MLCC_EMULATOR_MATH1(erfc)
MLCC_EMULATOR_MATH1(exp)
MLCC_EMULATOR_MATH1(exp2)
MLCC_EMULATOR_MATH1(exp10)
MLCC_EMULATOR_MATH1(expm1)
MLCC_EMULATOR_MATH1(fabs)
MLCC_EMULATOR_MATH1(floor)
MLCC_EMULATOR_MATH1(j0)
MLCC_EMULATOR_MATH1(j1)
MLCC_EMULATOR_MATH1(y0)
MLCC_EMULATOR_MATH1(y1)
MLCC_EMULATOR_MATH1(lgamma)
MLCC_EMULATOR_MATH1(log)
MLCC_EMULATOR_MATH1(log10)
MLCC_EMULATOR_MATH1(log1p)
MLCC_EMULATOR_MATH1(log2)
MLCC_EMULATOR_MATH1(logb)
MLCC_EMULATOR_MATH1(nearbyint)
MLCC_EMULATOR_MATH1(rint)
MLCC_EMULATOR_MATH1(round)
MLCC_EMULATOR_MATH1(sin)
MLCC_EMULATOR_MATH1(sinh)
MLCC_EMULATOR_MATH1(sqrt)
MLCC_EMULATOR_MATH1(tan)
MLCC_EMULATOR_MATH1(tanh)
MLCC_EMULATOR_MATH1(tgamma)
MLCC_EMULATOR_MATH1(trunc)
MLCC_EMULATOR_MATH2(atan2)
MLCC_EMULATOR_MATH2(copysign)
MLCC_EMULATOR_MATH2(fdim)
MLCC_EMULATOR_MATH2(fmax)
MLCC_EMULATOR_MATH2(fmin)
MLCC_EMULATOR_MATH2(fmod)
MLCC_EMULATOR_MATH2(hypot)
MLCC_EMULATOR_MATH2(nextafter)
MLCC_EMULATOR_MATH2(pow)
MLCC_EMULATOR_MATH2(remainder)
#undef MLCC_EMULATOR_MATH1
#undef MLCC_EMULATOR_MATH2

extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double modf(double, double*) noexcept;
float modff(float, float*) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
void sincos(double, double*, double*) noexcept;
void sincosf(float, float*, float*) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
long lround(double) noexcept;
long lroundf(float) noexcept;
long long llround(double) noexcept;
long long llroundf(float) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int exponent) { return ldexpf(x, exponent); }
inline long abs(long x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }

inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double sinpi(double x) { return sin(fmod(x, 2.0) * 3.14159265358979323846); }
inline double cospi(double x) { return cos(fmod(x, 2.0) * 3.14159265358979323846); }
inline float sinpif(float x) { return static_cast<float>(sinpi(static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(cospi(static_cast<double>(x))); }
inline float fdividef(float x, float y) { return x / y; }

template <class T>
inline bool isnan(T x) {
  return __builtin_isnan(x);
}
template <class T>
inline bool isinf(T x) {
  return __builtin_isinf(x);
}
template <class T>
inline bool isfinite(T x) {
  return __builtin_isfinite(x);
}
template <class T>
inline bool signbit(T x) {
  return __builtin_signbit(x);
}

#define MLCC_EMULATOR_MIN_MAX(type)                                                                \
  inline type min(type a, type b) { return b < a ? b : a; }                                        \
  inline type max(type a, type b) { return a < b ? b : a; }
MLCC_EMULATOR_MIN_MAX(int)
MLCC_EMULATOR_MIN_MAX(unsigned)
MLCC_EMULATOR_MIN_MAX(long)
MLCC_EMULATOR_MIN_MAX(unsigned long)
MLCC_EMULATOR_MIN_MAX(long long)
MLCC_EMULATOR_MIN_MAX(unsigned long long)
#undef MLCC_EMULATOR_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Intrinsics: the fast ones are as exact as the others here.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __drcp_rn(double x) { return 1.0 / x; }

// Bits of floating-point numbers
inline float __uint_as_float(unsigned x) { return mlcc_emulator::bit_cast<float>(x); }
inline float __int_as_float(int x) { return mlcc_emulator::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return mlcc_emulator::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return mlcc_emulator::bit_cast<int>(x); }
inline double __longlong_as_double(long long x) { return mlcc_emulator::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return mlcc_emulator::bit_cast<long long>(x); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}

// Conversions to integers: as on the device, out-of-range values take the nearest integer and NaN
// gives 0 (64 bits: the smallest integer).
namespace mlcc_emulator {
template <class Int>
inline Int to_integer(double x) {
  constexpr bool kSigned = static_cast<Int>(-1) < Int(0);
  constexpr int kBits = 8 * sizeof(Int) - kSigned;
  constexpr Int kHighest = static_cast<Int>(~0ull >> (64 - kBits));
  constexpr Int kLowest = kSigned ? -kHighest - 1 : 0;
  if (__builtin_isnan(x)) return sizeof(Int) == 8 ? static_cast<Int>(1ull << 63) : Int(0);
  if (x >= __builtin_ldexp(1.0, kBits)) return kHighest;
  if (x <= static_cast<double>(kLowest)) return kLowest;
  return static_cast<Int>(x);
}
}  // namespace mlcc_emulator
#define MLCC_EMULATOR_TO_INTEGER(from, source, to, result)                                         \
  inline result __##from##2##to##_rz(source x) { return mlcc_emulator::to_integer<result>(x); }    \
  inline result __##from##2##to##_rn(source x) {                                                   \
    return mlcc_emulator::to_integer<result>(rint(x));                                             \
  }                                                                                                \
  inline result __##from##2##to##_rd(source x) {                                                   \
    return mlcc_emulator::to_integer<result>(floor(x));                                            \
  }                                                                                                \
  inline result __##from##2##to##_ru(source x) {                                                   \
    return mlcc_emulator::to_integer<result>(ceil(x));                                             \
  }
MLCC_EMULATOR_TO_INTEGER(float, float, int, int)
MLCC_EMULATOR_TO_INTEGER(float, float, uint, unsigned)
MLCC_EMULATOR_TO_INTEGER(float, float, ll, long long)
MLCC_EMULATOR_TO_INTEGER(float, float, ull, unsigned long long)
MLCC_EMULATOR_TO_INTEGER(double, double, int, int)
MLCC_EMULATOR_TO_INTEGER(double, double, uint, unsigned)
MLCC_EMULATOR_TO_INTEGER(double, double, ll, long long)
MLCC_EMULATOR_TO_INTEGER(double, double, ull, unsigned long long)
#undef MLCC_EMULATOR_TO_INTEGER
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
