// What this machine can do at best: bandwidth of memory by footprint, and arithmetic.
//
// usage: machine_limits [--threads N] [--seconds 2.5] [--measure all|peaks|reads]
//                       [--footprints BYTES[,BYTES...]]
//
// Prints one JSON object: "flops" (f32 multiply-adds as two, per second, all threads), and for each
// footprint in bytes, of which each thread has its share, bytes per second of all threads together:
// "read", "copy", "write", plain and with non-temporal stores, in pages of 4 KB and in huge ones. A
// copy counts what it reads and what it writes. The best of several runs each: a limit, no mean.
// "peaks" has the multiply-adds as two of each instruction that this CPU has: f32 in vectors of 256
// and of 512 bits, bf16 pairs, int8 quadruples (of whole tiles with AMX). With `--measure peaks`
// there is nothing else; with
// `--measure reads` the footprints have reads alone, of 1, 2, 4 and 8 streams side by side.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// ---- Kernels: each goes once over `n` floats, a multiple of 128. AVX2 code: wider vectors read
// and write memory no faster, and multiply-adds have a form of their own.

#if defined(__x86_64__)
#define MLCC_AVX2 __attribute__((target("avx2,fma")))
#define MLCC_AVX512 __attribute__((target("avx512f")))
#define MLCC_AVX512_BF16 __attribute__((target("avx512f,avx512bf16")))
#define MLCC_AVX512_VNNI __attribute__((target("avx512f,avx512vnni")))
#define MLCC_AMX __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#define MLCC_UNROLL _Pragma("GCC unroll 16")

// Four streams side by side, as prefetchers like them.
MLCC_AVX2 float read_memory(const float* a, float*, size_t n) {
  __m256 sums[8];
  MLCC_UNROLL for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const size_t quarter = n / 4;
  for (size_t i = 0; i < quarter; i += 16) MLCC_UNROLL for (size_t s = 0; s < 4; ++s) {
      sums[2 * s] = _mm256_add_ps(sums[2 * s], _mm256_load_ps(a + s * quarter + i));
      sums[2 * s + 1] = _mm256_add_ps(sums[2 * s + 1], _mm256_load_ps(a + s * quarter + i + 8));
    }
  __m256 sum = sums[0];
  MLCC_UNROLL for (size_t s = 1; s < 8; ++s) sum = _mm256_add_ps(sum, sums[s]);
  return _mm256_cvtss_f32(sum);
}

MLCC_AVX2 float read_in_order(const float* a, float*, size_t n) {
  __m256 sums[8];
  MLCC_UNROLL for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (size_t i = 0; i < n; i += 64)
    MLCC_UNROLL for (size_t s = 0; s < 8; ++s) sums[s] =
        _mm256_add_ps(sums[s], _mm256_load_ps(a + i + 8 * s));
  __m256 sum = sums[0];
  MLCC_UNROLL for (size_t s = 1; s < 8; ++s) sum = _mm256_add_ps(sum, sums[s]);
  return _mm256_cvtss_f32(sum);
}

// `kStreams` parts side by side, at least eight sums: one addition takes several cycles.
template <size_t kStreams>
MLCC_AVX2 float read_streams(const float* a, float*, size_t n) {
  constexpr size_t kVectors = std::max<size_t>(2, 8 / kStreams);
  __m256 sums[kStreams * kVectors];
  MLCC_UNROLL for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const size_t part = n / kStreams;
  for (size_t i = 0; i < part; i += 8 * kVectors)
    MLCC_UNROLL for (size_t s = 0; s < kStreams * kVectors; ++s) {
      const float* from = a + s / kVectors * part + i + s % kVectors * 8;
      sums[s] = _mm256_add_ps(sums[s], _mm256_load_ps(from));
    }
  __m256 sum = sums[0];
  MLCC_UNROLL for (size_t s = 1; s < kStreams * kVectors; ++s) sum = _mm256_add_ps(sum, sums[s]);
  return _mm256_cvtss_f32(sum);
}

MLCC_AVX2 float copy_memory(const float* a, float* b, size_t n) {
  for (size_t i = 0; i < n; i += 32)
    MLCC_UNROLL for (size_t s = 0; s < 4; ++s)
        _mm256_store_ps(b + i + 8 * s, _mm256_load_ps(a + i + 8 * s));
  return b[0];
}

MLCC_AVX2 float stream_memory(const float* a, float* b, size_t n) {
  for (size_t i = 0; i < n; i += 32)
    MLCC_UNROLL for (size_t s = 0; s < 4; ++s)
        _mm256_stream_ps(b + i + 8 * s, _mm256_load_ps(a + i + 8 * s));
  _mm_sfence();
  return b[0];
}

MLCC_AVX2 float write_memory(const float*, float* b, size_t n) {
  const __m256 one = _mm256_set1_ps(1.0F);
  for (size_t i = 0; i < n; i += 32)
    MLCC_UNROLL for (size_t s = 0; s < 4; ++s) _mm256_store_ps(b + i + 8 * s, one);
  return b[0];
}

// `rounds` times 12 chains of multiply-adds; how many multiply-adds that were.
MLCC_AVX2 double multiply_add_256(int64_t rounds, float& result) {
  __m256 sums[12];
  MLCC_UNROLL for (size_t s = 0; s < 12; ++s) sums[s] = _mm256_set1_ps(static_cast<float>(s));
  const __m256 factor = _mm256_set1_ps(0.5F), addend = _mm256_set1_ps(result);
  for (int64_t i = 0; i < rounds; ++i)
    MLCC_UNROLL for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, addend);
  MLCC_UNROLL for (const __m256& sum : sums) result += _mm256_cvtss_f32(sum);
  return static_cast<double>(rounds) * 12 * 8;
}

MLCC_AVX512 double multiply_add_512(int64_t rounds, float& result) {
  __m512 sums[12];
  MLCC_UNROLL for (size_t s = 0; s < 12; ++s) sums[s] = _mm512_set1_ps(static_cast<float>(s));
  const __m512 factor = _mm512_set1_ps(0.5F), addend = _mm512_set1_ps(result);
  for (int64_t i = 0; i < rounds; ++i)
    MLCC_UNROLL for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, addend);
  MLCC_UNROLL for (const __m512& sum : sums) result += _mm512_cvtss_f32(sum);
  return static_cast<double>(rounds) * 12 * 16;
}

// Sums of products of bf16 pairs and of quadruples of bytes, all zero, which takes as long. Each
// chain starts with another number: of equal ones the compiler would keep one.
MLCC_AVX512_BF16 double multiply_add_bf16(int64_t rounds, float& result) {
  __m512 sums[12];
  MLCC_UNROLL for (size_t s = 0; s < 12; ++s) sums[s] = _mm512_set1_ps(static_cast<float>(s));
  __m512i zeros = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(zeros));  // else the compiler knows the result
    MLCC_UNROLL for (__m512& sum : sums) sum =
        _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(zeros), reinterpret_cast<__m512bh>(zeros));
  }
  MLCC_UNROLL for (const __m512& sum : sums) result += _mm512_cvtss_f32(sum);
  return static_cast<double>(rounds) * 12 * 32;
}

MLCC_AVX512_VNNI double multiply_add_int8(int64_t rounds, float& result) {
  __m512i sums[12];
  MLCC_UNROLL for (size_t s = 0; s < 12; ++s) sums[s] = _mm512_set1_epi32(static_cast<int>(s));
  __m512i zeros = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(zeros));
    MLCC_UNROLL for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, zeros, zeros);
  }
  MLCC_UNROLL for (const __m512i& sum : sums) result +=
      static_cast<float>(_mm512_cvtsi512_si32(sum));
  return static_cast<double>(rounds) * 12 * 64;
}

// AMX: registers of 16 rows of 64 bytes, four of sums.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <bool kBytes>
MLCC_AMX double multiply_tiles(int64_t rounds, float&) {
  static const TileShapes shapes;
  _tile_loadconfig(&shapes);
  for (int64_t i = 0; i < rounds; ++i) {
    if constexpr (kBytes) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
  return static_cast<double>(rounds) * 4 * 16 * 16 * (kBytes ? 64 : 32);
}

// Whether the CPU has them and Linux, which wants to be asked first, lets us use them.
bool may_use_tiles() {
#ifdef SYS_arch_prctl
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

struct Peak {
  const char* name;
  double (*run)(int64_t rounds, float& result);
};

// What this CPU has; the first is the fastest for f32.
std::vector<Peak> find_peaks() {
  std::vector<Peak> peaks;
  if (__builtin_cpu_supports("avx512f")) peaks.push_back({"f32_512", multiply_add_512});
  peaks.push_back({"f32_256", multiply_add_256});
  if (may_use_tiles()) {
    peaks.push_back({"bf16", multiply_tiles<false>});
    peaks.push_back({"int8", multiply_tiles<true>});
    return peaks;
  }
  if (__builtin_cpu_supports("avx512bf16")) peaks.push_back({"bf16", multiply_add_bf16});
  if (__builtin_cpu_supports("avx512vnni")) peaks.push_back({"int8", multiply_add_int8});
  return peaks;
}

bool can_run() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
// The compiler's own vectors; no stores past the caches.
float read_memory(const float* a, float*, size_t n) {
  float sums[16] = {};
  for (size_t i = 0; i < n; i += 16)
    for (size_t s = 0; s < 16; ++s) sums[s] += a[i + s];
  return *std::max_element(sums, sums + 16);
}
float read_in_order(const float* a, float* b, size_t n) { return read_memory(a, b, n); }
template <size_t kStreams>
float read_streams(const float* a, float* b, size_t n) {
  return read_memory(a, b, n);
}
float copy_memory(const float* a, float* b, size_t n) {
  std::memcpy(b, a, n * sizeof(float));
  return b[0];
}
float stream_memory(const float* a, float* b, size_t n) { return copy_memory(a, b, n); }
float write_memory(const float*, float* b, size_t n) {
  std::fill(b, b + n, 1.0F);
  return b[0];
}
double multiply_add(int64_t rounds, float& result) {
  float sums[64];
  for (size_t s = 0; s < 64; ++s) sums[s] = static_cast<float>(s);
  const float addend = result;
  for (int64_t i = 0; i < rounds; ++i)
    for (float& sum : sums) sum = __builtin_fmaf(sum, 0.5F, addend);
  for (const float sum : sums) result += sum;
  return static_cast<double>(rounds) * 64;
}
struct Peak {
  const char* name;
  double (*run)(int64_t rounds, float& result);
};
std::vector<Peak> find_peaks() { return {{"f32", multiply_add}}; }
bool can_run() { return true; }
#endif

// ---- Memory
// ---------------------------------------------------------------------------------------------------

constexpr size_t kHugePage = size_t{2} << 20;

// Pages that belong to this object, written once so that they are there.
class Memory {
 public:
  Memory(size_t bytes, bool is_huge) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    void* p = ::mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      std::fprintf(stderr, "machine_limits: no memory\n");
      std::exit(1);
    }
    base_ = p;
    const auto address = (reinterpret_cast<uintptr_t>(p) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<float*>(address);
    ::madvise(data_, bytes_, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~Memory() { ::munmap(base_, bytes_ + kHugePage); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  float* data() const { return data_; }

 private:
  size_t bytes_;
  void* base_ = nullptr;
  float* data_ = nullptr;
};

// ---- Timing
// ---------------------------------------------------------------------------------------------------

// All threads start together; seconds until the last one is done.
double run_together(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> goes{false};
  std::vector<std::thread> others;
  const auto run = [&](int thread) {
    ++ready;
    while (!goes.load(std::memory_order_acquire)) {
    }
    work(thread);
  };
  others.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  while (ready.load() < threads - 1) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  goes.store(true, std::memory_order_release);
  work(0);
  for (std::thread& other : others) other.join();
  return seconds_since(start);
}

volatile float g_sink = 0.0F;

using Kernel = float (*)(const float*, float*, size_t);

// Bytes per second of all threads, the best of the runs that fit in `seconds`.
double best_rate(Kernel kernel, int arrays, const std::vector<float*>& from,
                 const std::vector<float*>& to, size_t bytes, double seconds) {
  const size_t n = bytes / static_cast<size_t>(arrays) / sizeof(float) / 512 * 512;
  const int threads = static_cast<int>(from.size());
  const auto moved = static_cast<double>(n * sizeof(float) * static_cast<size_t>(arrays));
  const auto repeats = std::max<int64_t>(1, static_cast<int64_t>(2e7 / moved));
  double best = 0.0;
  const Clock::time_point start = Clock::now();
  do {
    const double taken = run_together(threads, [&](int thread) {
      const auto t = static_cast<size_t>(thread);
      for (int64_t i = 0; i < repeats; ++i) g_sink = kernel(from[t], to[t], n);
    });
    best = std::max(best, moved * static_cast<double>(repeats) * threads / taken);
  } while (seconds_since(start) < seconds);
  return best;
}

double best_flops(const Peak& peak, int threads, double seconds) {
  double best = 0.0;
  const Clock::time_point start = Clock::now();
  do {
    constexpr int64_t kRounds = 1 << 20;
    std::vector<double> done(static_cast<size_t>(threads));
    const double taken = run_together(threads, [&](int thread) {
      float result = 1.0F;
      done[static_cast<size_t>(thread)] = peak.run(kRounds, result);
      g_sink = result;
    });
    double total = 0.0;
    for (const double one : done) total += one;
    best = std::max(best, 2.0 * total / taken);
  } while (seconds_since(start) < seconds);
  return best;
}

struct Measured {
  const char* name;
  Kernel kernel;
  int arrays;  // that the footprint is shared by
};

constexpr Measured kMeasured[] = {
    {"read", read_memory, 1},      {"read_in_order", read_in_order, 1}, {"copy", copy_memory, 2},
    {"copy_nt", stream_memory, 2}, {"write", write_memory, 1},
};

constexpr Measured kReads[] = {
    {"read_1", read_streams<1>, 1},
    {"read_2", read_streams<2>, 1},
    {"read_4", read_streams<4>, 1},
    {"read_8", read_streams<8>, 1},
};

constexpr size_t kFootprints[] = {size_t{16} << 10,  size_t{64} << 10, size_t{512} << 10,
                                  size_t{2} << 20,   size_t{8} << 20,  size_t{32} << 20,
                                  size_t{128} << 20, size_t{512} << 20};

void print_peaks(const std::vector<Peak>& peaks, int threads, double seconds) {
  std::string text;
  for (const Peak& peak : peaks) {
    char one[64];
    const double flops = best_flops(peak, threads, seconds / static_cast<double>(peaks.size()));
    if (text.empty()) std::printf("  \"flops\": %.4g,\n", flops);
    std::snprintf(one, sizeof one, "%s\"%s\": %.4g", text.empty() ? "" : ", ", peak.name, flops);
    text += one;
  }
  std::printf("  \"peaks\": {%s}", text.c_str());
}

void print_bandwidths(const std::vector<size_t>& footprints, const std::vector<Measured>& measured,
                      int threads, double seconds) {
  const double share = seconds / static_cast<double>(footprints.size() * measured.size() * 2);
  std::printf(",\n  \"footprints\": [\n");
  for (size_t i = 0; i < footprints.size(); ++i) {
    const size_t bytes = footprints[i];
    std::printf("    {\"bytes\": %zu", bytes);
    for (const bool is_huge : {false, true}) {
      std::vector<std::unique_ptr<Memory>> memory;
      std::vector<float*> from, to;
      for (int thread = 0; thread < threads; ++thread) {
        const size_t own = bytes / static_cast<size_t>(threads);
        memory.push_back(std::make_unique<Memory>(own, is_huge));
        from.push_back(memory.back()->data());
        memory.push_back(std::make_unique<Memory>(own, is_huge));
        to.push_back(memory.back()->data());
      }
      for (const Measured& one : measured)
        std::printf(", \"%s%s\": %.4g", one.name, is_huge ? "_huge" : "",
                    best_rate(one.kernel, one.arrays, from, to,
                              bytes / static_cast<size_t>(threads), share));
    }
    std::printf("}%s\n", i + 1 < footprints.size() ? "," : "");
  }
  std::printf("  ]");
}

std::vector<size_t> parse_sizes(const char* text) {
  std::vector<size_t> sizes;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    sizes.push_back(std::strtoull(text, &end, 10));
    if (end == text) break;
  }
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 1;
  double seconds = 2.5;
  std::string measure = "all";
  std::vector<size_t> footprints(std::begin(kFootprints), std::end(kFootprints));
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--measure") == 0) measure = argv[i + 1];
    if (std::strcmp(argv[i], "--footprints") == 0) footprints = parse_sizes(argv[i + 1]);
  }
  if (!can_run()) {
    std::fprintf(stderr, "machine_limits: this CPU has no AVX2\n");
    return 1;
  }
  std::printf("{\n  \"threads\": %d,\n", threads);
  print_peaks(find_peaks(), threads, measure == "peaks" ? seconds : seconds / 10);
  if (measure == "reads") {
    print_bandwidths(footprints, {std::begin(kReads), std::end(kReads)}, threads, seconds);
  } else if (measure != "peaks") {
    print_bandwidths(footprints, {std::begin(kMeasured), std::end(kMeasured)}, threads, seconds);
  }
  std::printf("\n}\n");
  return 0;
}
