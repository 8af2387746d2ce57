#include "package/targets.h"

#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "support/bytes.h"

namespace mlcc::package {
namespace {

struct Feature {
  std::string_view name;
  bool (*is_there)();
};

#if defined(__x86_64__)

constexpr std::string_view kArchitecture = "x86_64";

// Linux wants to be asked before tiles are used.
bool has_tiles(bool is_in_cpu) {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h
  return is_in_cpu && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#define MLCC_FEATURE(name) {name, [] { return __builtin_cpu_supports(name) != 0; }}
constexpr Feature kFeatures[] = {
    MLCC_FEATURE("sse3"),
    MLCC_FEATURE("ssse3"),
    MLCC_FEATURE("sse4.1"),
    MLCC_FEATURE("sse4.2"),
    MLCC_FEATURE("sse4a"),
    MLCC_FEATURE("avx"),
    MLCC_FEATURE("avx2"),
    MLCC_FEATURE("fma"),
    MLCC_FEATURE("fma4"),
    MLCC_FEATURE("f16c"),
    MLCC_FEATURE("xop"),
    MLCC_FEATURE("tbm"),
    MLCC_FEATURE("bmi"),
    MLCC_FEATURE("bmi2"),
    MLCC_FEATURE("lzcnt"),
    MLCC_FEATURE("popcnt"),
    MLCC_FEATURE("movbe"),
    MLCC_FEATURE("adx"),
    MLCC_FEATURE("avxvnni"),
    MLCC_FEATURE("avx512f"),
    MLCC_FEATURE("avx512cd"),
    MLCC_FEATURE("avx512bw"),
    MLCC_FEATURE("avx512dq"),
    MLCC_FEATURE("avx512vl"),
    MLCC_FEATURE("avx512ifma"),
    MLCC_FEATURE("avx512vbmi"),
    MLCC_FEATURE("avx512vbmi2"),
    MLCC_FEATURE("avx512vnni"),
    MLCC_FEATURE("avx512bf16"),
    MLCC_FEATURE("avx512bitalg"),
    MLCC_FEATURE("avx512vpopcntdq"),
    MLCC_FEATURE("avx512fp16"),
    MLCC_FEATURE("gfni"),
    MLCC_FEATURE("vaes"),
    MLCC_FEATURE("vpclmulqdq"),
    {"amx-tile", [] { return has_tiles(__builtin_cpu_supports("amx-tile") != 0); }},
    {"amx-bf16", [] { return has_tiles(__builtin_cpu_supports("amx-bf16") != 0); }},
    {"amx-int8", [] { return has_tiles(__builtin_cpu_supports("amx-int8") != 0); }},
};
#undef MLCC_FEATURE

#elif defined(__aarch64__)

constexpr std::string_view kArchitecture = "aarch64";

// The bits of asm/hwcap.h.
bool has(unsigned long vector, int bit) { return (getauxval(vector) >> bit & 1) != 0; }
constexpr Feature kFeatures[] = {
    {"neon", [] { return has(AT_HWCAP, 1); }},     {"fp16fml", [] { return has(AT_HWCAP, 23); }},
    {"dotprod", [] { return has(AT_HWCAP, 20); }}, {"i8mm", [] { return has(AT_HWCAP2, 13); }},
    {"bf16", [] { return has(AT_HWCAP2, 14); }},
};

#endif

}  // namespace

std::string encode_targets(const std::vector<Target>& targets) {
  ByteWriter out;
  out.add_count(targets.size());
  for (const Target& target : targets) {
    out.add_text(target.architecture);
    out.add_text(target.cpu);
    out.add_count(target.features.size());
    for (const std::string& feature : target.features) out.add_text(feature);
  }
  return out.bytes();
}

std::vector<Target> decode_targets(std::string_view bytes) {
  ByteReader in(bytes, "targets");
  std::vector<Target> targets(in.length());
  for (Target& target : targets) {
    target.architecture = in.text();
    target.cpu = in.text();
    target.features.resize(in.length());
    for (std::string& feature : target.features) feature = in.text();
  }
  in.expect_end();
  return targets;
}

std::string missing_here(const Target& target) {
  if (target.architecture != kArchitecture) return target.architecture;
  for (const std::string& name : target.features) {
    const auto* const found =
        std::find_if(std::begin(kFeatures), std::end(kFeatures),
                     [&](const Feature& feature) { return feature.name == name; });
    if (found == std::end(kFeatures) || !found->is_there()) return name;
  }
  return "";
}

}  // namespace mlcc::package
