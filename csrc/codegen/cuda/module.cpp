#include "codegen/cuda/module.h"

#include <algorithm>
#include <utility>

#include "support/error.h"

namespace mlcc::codegen::cuda {
namespace {

constexpr std::string_view kMagic = "MLCCCU2\n";

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) {}

  void put(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(value >> shift);
  }
  void put(int64_t value) { put(static_cast<uint64_t>(value)); }
  void put(int32_t value) { put(static_cast<int64_t>(value)); }
  void put(bool value) { put(static_cast<uint64_t>(value)); }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    bytes_ += text;
  }
  void put(const SymExpr& expr) { put(expr.str()); }
  void put(const Divisibility& condition) {
    put(condition.expr);
    put(condition.divisor);
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(uint64_t{list.size()});
    for (const T& element : list) put(element);
  }
  void put(const PhaseInfo& phase) {
    put(phase.function);
    for (const int32_t value : {phase.threads, phase.group, phase.shared_bytes, phase.registers,
                                phase.spilled_bytes, phase.local_bytes, phase.static_shared_bytes})
      put(value);
  }
  void put(const ModuleKernel& kernel) {
    put(kernel.name);
    put(kernel.sizes);
    put(kernel.info.phases);
    put(kernel.info.alignment);
    put(kernel.info.value_bytes);
    put(kernel.info.buffer_bytes);
    put(kernel.info.is_fresh);
    put(kernel.info.divisible);
    put(kernel.info.below_2_30);
    put(kernel.info.nonnegative);
    put(kernel.info.has_checks);
  }

 private:
  std::string& bytes_;
};

// Throws Error at the first thing that is not there or makes no sense.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool is_at_end() const { return bytes_.empty(); }

  void get(uint64_t& value) {
    value = 0;
    const std::string_view eight = take(8);
    for (size_t i = 0; i < 8; ++i)
      value |= uint64_t{static_cast<unsigned char>(eight[i])} << (8 * i);
  }
  void get(int64_t& value) {
    uint64_t bits = 0;
    get(bits);
    value = static_cast<int64_t>(bits);
  }
  void get(int32_t& value) {
    int64_t wide = 0;
    get(wide);
    MLCC_USER_CHECK(wide >= INT32_MIN && wide <= INT32_MAX, "module: number out of range");
    value = static_cast<int32_t>(wide);
  }
  void get(bool& value) {
    uint64_t wide = 0;
    get(wide);
    MLCC_USER_CHECK(wide <= 1, "module: flag out of range");
    value = wide == 1;
  }
  void get(std::string& text) { text = take(length()); }
  void get(SymExpr& expr) {
    std::string text;
    get(text);
    expr = SymExpr::parse(text);
  }
  void get(Divisibility& condition) {
    get(condition.expr);
    get(condition.divisor);
    MLCC_USER_CHECK(condition.divisor > 0, "module: divisor out of range");
  }
  template <typename T>
  void get(std::vector<T>& list) {
    const size_t count = length();  // an element takes a byte at least
    list.clear();
    for (size_t i = 0; i < count; ++i) {
      T element{};
      get(element);
      list.push_back(std::move(element));
    }
  }
  void get(PhaseInfo& phase) {
    get(phase.function);
    for (int32_t* value : {&phase.threads, &phase.group, &phase.shared_bytes, &phase.registers,
                           &phase.spilled_bytes, &phase.local_bytes, &phase.static_shared_bytes})
      get(*value);
    MLCC_USER_CHECK(phase.threads > 0 && phase.group > 0 && phase.threads % phase.group == 0 &&
                        phase.shared_bytes >= 0,
                    "module: shape of a block out of range");
  }
  void get(ModuleKernel& kernel) {
    get(kernel.name);
    get(kernel.sizes);
    get(kernel.info.phases);
    get(kernel.info.alignment);
    get(kernel.info.value_bytes);
    get(kernel.info.buffer_bytes);
    get(kernel.info.is_fresh);
    get(kernel.info.divisible);
    get(kernel.info.below_2_30);
    get(kernel.info.nonnegative);
    get(kernel.info.has_checks);
    MLCC_USER_CHECK(kernel.info.alignment.size() == kernel.info.value_bytes.size() &&
                        kernel.info.buffer_bytes.size() == kernel.info.is_fresh.size(),
                    "module: lists of unequal length");
    for (const int32_t place : kernel.info.nonnegative)
      MLCC_USER_CHECK(place >= 0 && static_cast<size_t>(place) < kernel.sizes.size(),
                      "module: size out of range");
  }

 private:
  size_t length() {
    uint64_t value = 0;
    get(value);
    MLCC_USER_CHECK(value <= bytes_.size(), "module: ends too early");
    return static_cast<size_t>(value);
  }
  std::string_view take(size_t size) {
    MLCC_USER_CHECK(size <= bytes_.size(), "module: ends too early");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
};

}  // namespace

const ModuleKernel* Module::find(std::string_view name) const {
  const auto it = std::find_if(kernels.begin(), kernels.end(),
                               [&](const ModuleKernel& kernel) { return kernel.name == name; });
  return it == kernels.end() ? nullptr : &*it;
}

std::string encode_module(const Module& module) {
  std::string bytes(kMagic);
  Writer writer(bytes);
  writer.put(module.arch);
  writer.put(module.nvrtc);
  writer.put(module.options);
  writer.put(module.is_ptx);
  writer.put(module.kernels);
  writer.put(module.code);
  return bytes;
}

Result<Module> decode_module(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return unsupported("module: does not begin as one");
  Reader reader(bytes.substr(kMagic.size()));
  Module module;
  try {
    reader.get(module.arch);
    reader.get(module.nvrtc);
    reader.get(module.options);
    reader.get(module.is_ptx);
    reader.get(module.kernels);
    reader.get(module.code);
  } catch (const Error& error) {
    return unsupported(error.what());
  }
  if (!reader.is_at_end()) return unsupported("module: does not end where it should");
  return module;
}

}  // namespace mlcc::codegen::cuda
