// How near the machine's limits compiled tile contractions come, on one thread.
//
// usage: contractions [--cpu=NAME] [--llvm=PATH] [--seconds=0.3]
//
// One line per kernel: its rate, the limit measured in the same run, and their quotient. Tiles of
// 12 x 32 are multiplied again and again from the first and the second level of cache; packed
// products of whole matrices run over panels of 32 columns in blocks of depth; one row is
// multiplied with 64 MB of packed weights. The limit of arithmetic is independent multiply-adds in
// registers, that of memory a sum of the same weights. Rates are the best of all runs within the
// time, kernel and limit in turns, since what else runs on the machine only ever takes away.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codegen/cpu/client.h"
#include "loop/text.h"
#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc {
namespace {

struct Dtypes {
  const char* name;
  const char* a;
  const char* b;
  const char* c;
  int64_t size;  // of an element of A and B, in bytes
  int64_t word;  // elements along depth that lie side by side
};

constexpr Dtypes kDtypes[] = {{"f32", "f32", "f32", "f32", 4, 1},
                              {"bf16", "bf16", "bf16", "f32", 2, 2},
                              {"u8 i8", "u8", "i8", "i32", 1, 4},
                              {"i8 i8", "i8", "i8", "i32", 1, 4},
                              {"f32 bf16", "f32", "bf16", "f32", 2, 1}};
constexpr int64_t kRows = 12, kColumns = 32;
// In words of four bytes 96 KB of B and 360 KB of A, which stay in the second level of cache.
constexpr int64_t kWordsOfBlock = 768;
constexpr int64_t kRowsOfBlock = 120;

std::string replace(std::string text, const std::string& name, const std::string& value) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
    text.replace(at, name.size(), value);
  return text;
}

std::string replace(std::string text, const Dtypes& dtypes) {
  const std::string word = std::to_string(dtypes.word);
  const bool has_word = dtypes.word > 1;
  text = replace(text, "$ASTEPS", has_word ? word + ", 1" : "1");
  text = replace(text, "$BSTEPS",
                 has_word ? word + ", " + std::to_string(32 * dtypes.word) + ", 1" : "1, 32");
  text = replace(text, "$WORD", word);
  text = replace(text, "$DEPTH", has_word ? "%depth, " + word : "%depth");
  text = replace(text, "$A", dtypes.a);
  text = replace(text, "$B", dtypes.b);
  return replace(text, "$C", dtypes.c);
}

// %depth counts words.
constexpr const char* kTile = R"(
kernel @k(%depth: i64, %times: i64; %a: in $A[12 * %depth * $WORD], %b: in $B[%depth * 32 * $WORD], %y: out $C[12, 32]) {
  for %t in 0..%times {
    alloc %c: stack $C[12, 32]
    contract %c[0, 0] by (32, 1) = %a[0] by (%depth * $WORD, $ASTEPS) * %b[0] by ($BSTEPS) tile(12, 32) depth($DEPTH)
    for %p in 0..12 unrolled { for %q in 0..32 vector(16) { store %y[%p, %q] = %c[%p, %q] } }
  }
})";

// A by rows; B in panels of 32 columns. %n is a multiple of 32, %m and %words are any.
constexpr const char* kProduct = R"(
kernel @k(%m: i64, %n: i64, %words: i64, %block: i64, %rows: i64; %a: in $A[%m * %words * $WORD], %b: in $B[%n * %words * $WORD], %y: inout $C[%m, %n]) {
  for %kb in 0..floordiv(%words + %block - 1, %block) {
    let %k: i64 = %kb * %block
    let %depth: i64 = min(%block, %words - %k)
    for %mb in 0..floordiv(%m + %rows - 1, %rows) {
      let %end: i64 = min(%m, (%mb + 1) * %rows)
      for %nb in 0..floordiv(%n, 32) {
        let %panel: i64 = (%nb * %words + %k) * 32 * $WORD
        let %tiles: i64 = floordiv(%end - %mb * %rows + 11, 12)
        for %t in 0..%tiles {
          let %row: i64 = %mb * %rows + %t * 12
          alloc %c: stack $C[12, 32]
          if %row + 12 <= %end {
            contract %c[0, 0] by (32, 1) = %a[(%row * %words + %k) * $WORD] by (%words * $WORD, $ASTEPS) * %b[%panel] by ($BSTEPS) tile(12, 32) depth($DEPTH)
            if %kb == 0 {
              for %p in 0..12 unrolled { for %q in 0..32 vector(16) { store %y[%row + %p, %nb * 32 + %q] = %c[%p, %q] } }
            } else {
              for %p1 in 0..12 unrolled { for %q1 in 0..32 vector(16) { store %y[%row + %p1, %nb * 32 + %q1] = %y[%row + %p1, %nb * 32 + %q1] + %c[%p1, %q1] } }
            }
          } else {
            contract %c[0, 0] by (32, 1) = %a[(%row * %words + %k) * $WORD] by (%words * $WORD, $ASTEPS) * %b[%panel] by ($BSTEPS) tile(8, 32) depth($DEPTH)
            for %p2 in 0..8 unrolled { for %q2 in 0..32 vector(16) { store %y[%row + %p2, %nb * 32 + %q2] = %c[%p2, %q2] + select(%kb == 0, $C(0), %y[%row + %p2, %nb * 32 + %q2]) } }
          }
        }
      }
    }
  }
})";

// One row; B in panels of 64 columns.
constexpr const char* kRow = R"(
kernel @k(%n: i64, %depth: i64; %a: in f32[%depth], %b: in $B[%n * %depth], %y: out f32[%n]) {
  for %panel in 0..floordiv(%n, 64) {
    alloc %c: register f32[1, 64]
    contract %c[0, 0] by (64, 1) = %a[0] by (%depth, 1) * %b[%panel * 64 * %depth] by (1, 64) tile(1, 64) depth(%depth)
    for %q in 0..64 vector(16) { store %y[%panel * 64 + %q] = %c[0, %q] }
  }
})";

// ---- Limits -------------------------------------------------------------------------------------

volatile float sink = 1;
void keep(float value) { sink = value; }

#if defined(__x86_64__)
using Chains = std::make_index_sequence<16>;
using NarrowChains = std::make_index_sequence<12>;

template <size_t... I>
__attribute__((target("avx512f"))) void add_f32(int64_t rounds, std::index_sequence<I...>) {
  __m512 sums[] = {_mm512_set1_ps(I)...}, a = _mm512_set1_ps(sink), b = a;
  for (int64_t i = 0; i < rounds; ++i) ((sums[I] = _mm512_fmadd_ps(a, b, sums[I])), ...);
  (keep(_mm512_cvtss_f32(sums[I])), ...);
}
template <size_t... I>
__attribute__((target("avx2,fma"))) void add_f32_narrow(int64_t rounds, std::index_sequence<I...>) {
  __m256 sums[] = {_mm256_set1_ps(I)...}, a = _mm256_set1_ps(sink), b = a;
  for (int64_t i = 0; i < rounds; ++i) ((sums[I] = _mm256_fmadd_ps(a, b, sums[I])), ...);
  (keep(_mm256_cvtss_f32(sums[I])), ...);
}
template <size_t... I>
__attribute__((target("avx512f,avx512bf16"))) void add_bf16(int64_t rounds,
                                                            std::index_sequence<I...>) {
  __m512 sums[] = {_mm512_set1_ps(I)...};
  __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(sink), _mm512_set1_ps(sink)), b = a;
  for (int64_t i = 0; i < rounds; ++i) ((sums[I] = _mm512_dpbf16_ps(sums[I], a, b)), ...);
  (keep(_mm512_cvtss_f32(sums[I])), ...);
}
template <size_t... I>
__attribute__((target("avx512f,avx512vnni"))) void add_bytes(int64_t rounds,
                                                             std::index_sequence<I...>) {
  __m512i sums[] = {_mm512_set1_epi32(I)...}, a = _mm512_set1_epi8(static_cast<char>(sink)), b = a;
  for (int64_t i = 0; i < rounds; ++i) ((sums[I] = _mm512_dpbusd_epi32(sums[I], a, b)), ...);
  (keep(static_cast<float>(_mm512_cvtsi512_si32(sums[I]))), ...);
}
__attribute__((target("avx2"))) void read_all(const float* data, int64_t count) {
  __m256 sums[8] = {};
  for (int64_t i = 0; i < count; i += 64) {
    _Pragma("GCC unroll 8") for (int64_t c = 0; c < 8; ++c) sums[c] =
        _mm256_add_ps(sums[c], _mm256_loadu_ps(data + i + c * 8));
  }
  for (auto& sum : sums) sink = _mm256_cvtss_f32(sum);
}

struct Limit {
  std::function<void()> run;
  double work;  // operations: a multiplication and an addition are two
};

// Of the dtypes' best instruction on this machine.
Limit limit_of(const Dtypes& dtypes) {
  constexpr int64_t kRounds = 20000;
  const double lanes = 2.0 * 16 * Chains::size() * kRounds;
  if (dtypes.word == 2 && __builtin_cpu_supports("avx512bf16"))
    return {[] { add_bf16(kRounds, Chains()); }, 2 * lanes};
  if (dtypes.word == 4 && __builtin_cpu_supports("avx512vnni"))
    return {[] { add_bytes(kRounds, Chains()); }, 4 * lanes};
  if (__builtin_cpu_supports("avx512f")) return {[] { add_f32(kRounds, Chains()); }, lanes};
  return {[] { add_f32_narrow(kRounds, NarrowChains()); },
          2.0 * 8 * NarrowChains::size() * kRounds};
}
#endif

// ---- Kernels ------------------------------------------------------------------------------------

struct Machine {
  std::shared_ptr<codegen::Backend> backend;
  std::shared_ptr<runtime::ObjectLoader> loader;
  double seconds;
};

// Of this thread alone: on a machine that others use too, the clock on the wall shows their share.
double time_of(const std::function<void()>& run) {
  auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  run();
  return now() - start;
}

// The least time of each, run in turns.
std::pair<double, double> race(const Machine& machine, const std::function<void()>& kernel,
                               const std::function<void()>& limit) {
  double best = time_of(kernel), best_limit = time_of(limit), spent = 0;
  while (spent < machine.seconds) {
    const double one = time_of(kernel), other = time_of(limit);
    best = std::min(best, one);
    best_limit = std::min(best_limit, other);
    spent += one + other;
  }
  return {best, best_limit};
}

class Program {
 public:
  Program(const Machine& machine, const std::string& text, std::vector<int64_t> sizes,
          const std::vector<int64_t>& bytes)
      : sizes_(std::move(sizes)) {
    loop::Arena arena;
    const loop::Kernel kernel = loop::parse_kernel(arena, text);
    const auto code = machine.backend->compile({.kernels = {{.text = loop::print(kernel)}}});
    MLCC_USER_CHECK(code, code.reason());
    code_ = machine.loader->load(code->bytes, kernel.name, 1);
    for (const int64_t count : bytes) {
      const auto aligned = static_cast<size_t>((count + 4095) / 4096 * 4096);
      buffers_.emplace_back(std::aligned_alloc(4096, aligned), std::free);
      std::memset(buffers_.back().get(), 0, aligned);  // numbers of no kind slow the machine down
      pointers_.push_back(buffers_.back().get());
    }
  }
  void run() const {
    const runtime::KernelArgs args{pointers_.data(), sizes_.data()};
    runtime::host_phases(*code_)[0](&args, 0, 1);
  }
  const void* data(size_t i) const { return pointers_[i]; }

 private:
  std::vector<int64_t> sizes_;
  runtime::KernelPtr code_;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> buffers_;
  std::vector<void*> pointers_;
};

void report(const std::string& name, double rate, double limit, const char* unit) {
  std::printf("%-34s %8.1f of %8.1f %s: %.3f\n", name.c_str(), rate * 1e-9, limit * 1e-9, unit,
              rate / limit);
}

void measure_tile(const Machine& machine, const Dtypes& dtypes, int64_t words, const char* level) {
  const int64_t depth = words * dtypes.word, times = 200;
  const Program program(machine, replace(kTile, dtypes), {words, times},
                        {kRows * depth * 4, kColumns * depth * dtypes.size, kRows * kColumns * 4});
  const Limit limit = limit_of(dtypes);
  const auto [time, limit_time] = race(machine, [&] { program.run(); }, limit.run);
  const double work = 2.0 * static_cast<double>(kRows * kColumns * depth * times);
  report(std::string(dtypes.name) + " tile 12x32, " + level, work / time, limit.work / limit_time,
         "GOP/s");
}

void measure_product(const Machine& machine, const Dtypes& dtypes, int64_t m, int64_t n,
                     int64_t k) {
  const int64_t words = k / dtypes.word;
  const Program program(machine, replace(kProduct, dtypes),
                        {m, n, words, std::min(words, kWordsOfBlock), kRowsOfBlock},
                        {m * k * 4, n * k * dtypes.size, m * n * 4});
  const Limit limit = limit_of(dtypes);
  const auto [time, limit_time] = race(machine, [&] { program.run(); }, limit.run);
  const double work = 2.0 * static_cast<double>(m * n * k);
  const std::string shape = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
  report(std::string(dtypes.name) + " " + shape, work / time, limit.work / limit_time, "GOP/s");
}

void measure_row(const Machine& machine, const Dtypes& dtypes) {
  const int64_t bytes = 64 << 20, depth = 4096, n = bytes / dtypes.size / depth;
  const Program program(machine, replace(kRow, dtypes), {n, depth},
                        {depth * 4, bytes + 8192, n * 4});
  const auto* weights = static_cast<const float*>(program.data(1));
  const auto [time, limit_time] =
      race(machine, [&] { program.run(); }, [&] { read_all(weights, bytes / 4); });
  report(std::string(dtypes.name) + " 1 row, 64 MB", static_cast<double>(bytes) / time,
         static_cast<double>(bytes) / limit_time, "GB/s");
}

int run(int argc, char** argv) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  std::string library = (self.parent_path().parent_path() / "mlcc" / "libmlcc_llvm.so").string();
  std::string cpu;
  Machine machine{.backend = nullptr, .loader = nullptr, .seconds = 0.3};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--cpu="))
      cpu = argument.substr(6);
    else if (argument.starts_with("--llvm="))
      library = argument.substr(7);
    else if (argument.starts_with("--seconds="))
      machine.seconds = std::stod(argument.substr(10));
    else
      throw Error(argument + ": unknown argument");
  }
  const auto backend = codegen::cpu::open_cpu_backend(library, cpu);
  MLCC_USER_CHECK(backend, backend.reason());
  machine.backend = *backend;
  machine.loader = *codegen::cpu::open_object_loader(library);
  for (const Dtypes& dtypes : kDtypes) {
    measure_tile(machine, dtypes, 128, "L1");
    measure_tile(machine, dtypes, 1000, "L2");
    measure_product(machine, dtypes, 512, 3072, 768);
    measure_product(machine, dtypes, 128, 768, 3072);
  }
  measure_row(machine, kDtypes[0]);
  measure_row(machine, kDtypes[4]);
  return 0;
}

}  // namespace
}  // namespace mlcc

int main(int argc, char** argv) {
  try {
    return mlcc::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "contractions: %s\n", error.what());
    return 1;
  }
}
