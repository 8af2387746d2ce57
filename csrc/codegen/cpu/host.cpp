#include "codegen/cpu/host.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/TargetParser/AArch64TargetParser.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/X86TargetParser.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "mlcc_build_id.h"

namespace mlcc::codegen::cpu {
namespace {

std::string join_sorted(std::vector<std::string> features) {
  std::sort(features.begin(), features.end());
  std::string text;
  for (const std::string& feature : features) {
    if (!text.empty()) text += ',';
    text += '+';
    text += feature;
  }
  return text;
}

constexpr std::string_view kTiles = "+amx";

// Whether this process may use AMX's tile registers: Linux wants to be asked first.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

void remove_tiles(std::vector<std::string>& features) {
  std::erase_if(features, [](const std::string& feature) { return feature.starts_with("amx"); });
}

std::string features_of_arm(const llvm::AArch64::CpuInfo& cpu) {
  std::vector<llvm::StringRef> known = {cpu.Arch.ArchFeature};
  llvm::AArch64::getExtensionFeatures(cpu.getImpliedExtensions(), known);
  std::vector<std::string> names;
  for (llvm::StringRef name : known) names.push_back(name.drop_front().str());  // the plus sign
  return join_sorted(std::move(names));
}

bool has(const std::string& features, std::string_view name) {
  const std::string padded = "," + features + ",";
  return padded.find(",+" + std::string(name) + ",") != std::string::npos;
}

}  // namespace

const std::string& host_cpu() {
  static const std::string cpu = llvm::sys::getHostCPUName().str();
  return cpu;
}

const std::string& host_features() {
  static const std::string features = [] {
    std::vector<std::string> names;
    for (const auto& entry : llvm::sys::getHostCPUFeatures())
      if (entry.second) names.push_back(entry.first().str());
    if (std::find(names.begin(), names.end(), "amx-tile") == names.end() || !may_use_tiles())
      remove_tiles(names);
    return join_sorted(std::move(names));
  }();
  return features;
}

const std::string& emitter_version() {
  static const std::string version =
      std::string("emitter " MLCC_BUILD_ID ", LLVM ") + LLVM_VERSION_STRING;
  return version;
}

std::string llvm_name_of(const std::string& cpu) {
  return cpu.ends_with(kTiles) ? cpu.substr(0, cpu.size() - kTiles.size()) : cpu;
}

const char* triple_of_cpu(const std::string& cpu) {
  return llvm::AArch64::parseCpu(cpu) ? "aarch64-unknown-linux-gnu" : "x86_64-unknown-linux-gnu";
}

std::optional<std::string> features_of_cpu(const std::string& cpu) {
  if (const auto arm = llvm::AArch64::parseCpu(cpu)) return features_of_arm(*arm);
  const std::string name = llvm_name_of(cpu);
  if (llvm::X86::parseArchX86(name, /*Only64Bit=*/true) == llvm::X86::CK_None) return std::nullopt;
  llvm::SmallVector<llvm::StringRef, 64> known;
  llvm::X86::getFeaturesForCPU(name, known);
  std::vector<std::string> names;
  for (llvm::StringRef feature : known) names.push_back(feature.str());
  remove_tiles(names);
  if (name != cpu) names.insert(names.end(), {"amx-bf16", "amx-int8", "amx-tile"});
  return join_sorted(std::move(names));
}

int64_t vector_bits_of(const std::string& features) {
  if (has(features, "neon")) return 128;
  for (std::string_view name : {"avx2", "fma", "f16c"})
    if (!has(features, name)) return 0;
  for (std::string_view name : {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
    if (!has(features, name)) return 256;
  return 512;
}

}  // namespace mlcc::codegen::cpu
