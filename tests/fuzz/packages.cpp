// Packages whose bytes are changed or cut: an error each, or another package whose sizes can be
// asked for. None is run: code is what whoever writes packages says. Half of them have checksums
// that are right again.
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "package/format.h"
#include "package/mlcc_runtime.h"
#include "package/writer.h"
#include "seeds.h"
#include "support/error.h"
#include "support/hash.h"
#include "tests/cpp/package/package_file.h"

namespace mlcc::fuzz {
namespace {

using package::InputKind;

constexpr size_t kNumSections = 6;

const SymExpr kBatch = SymExpr::symbol("s0"), kLength = SymExpr::symbol("s1");

runtime::TensorSpec spec_of(DType dtype, std::vector<SymExpr> shape) {
  std::vector<SymExpr> strides = contiguous_strides(shape);
  return {dtype, std::move(shape), std::move(strides)};
}

// The input 2 is made of the input 3, by one kernel.
package::Recipes recipes() {
  package::Recipes recipes;
  package::Contents& program = recipes.programs.emplace_back();
  program.plan.inputs = {{false, spec_of(DType::kF32, {4}), 0}};
  program.inputs = {{InputKind::kGiven, "source", {}, 0, 0}};
  program.plan.num_slots = 2;
  program.plan.steps = {runtime::AllocateStep{1, spec_of(DType::kF32, {16, 16}), false},
                        runtime::LaunchStep{"", {}, "pack", {}, {0, 1}, {}, {{16, 1}}, {}, ""}};
  program.plan.outputs = {1};
  program.outputs = {{"packed", {}}};
  program.entries = {{64}};
  recipes.recipes = {{0, 2, {3}}};
  recipes.names = {{"layer.weight", 3}, {"steps", package::WeightName::kUnread}};
  return recipes;
}

// All kinds of steps, and sizes with all kinds of operations.
package::PackageFile example() {
  static const std::vector<char> weights(4096, 1);
  package::PackageFile file;
  package::Contents& contents = file.contents;
  const SymExpr half = SymExpr::floordiv(kLength + 1, 2);
  const SymExpr wide = SymExpr::max(SymExpr::min(kLength, 8), SymExpr::mod(kBatch, 3)) * kBatch;
  contents.plan.inputs = {{false, spec_of(DType::kF32, {kBatch, kLength}), 0},
                          {false, spec_of(DType::kI64, {kBatch, half}), 0},
                          {false, spec_of(DType::kF32, {16, 16}), 0},
                          {false, spec_of(DType::kF32, {4}), 0}};
  contents.inputs = {{InputKind::kGiven, "x", {"batch", "length"}, 0, 0},
                     {InputKind::kGiven, "ids", {"batch", "(length + 1)//2"}, 0, 0},
                     {InputKind::kWeight, "w", {}, 0, 1024},
                     {InputKind::kUnused, "unused", {}, 0, 0}};
  contents.symbols = {{"s0", "batch", 1, 64}, {"s1", "length", 0, kUnboundedHigh}};
  contents.conditions = {{SymExpr::min(SymExpr::max(kBatch, 0), 1), "batch > 0"}};
  contents.plan.num_slots = 9;
  contents.plan.steps = {
      runtime::BindStep{"s0", 0, 0},
      runtime::BindStep{"s1", 0, 1},
      runtime::AllocateStep{4, spec_of(DType::kF32, {wide}), true},
      runtime::AllocateStep{5, spec_of(DType::kF32, {kBatch, half * 2}), true},
      runtime::AllocateStep{6, spec_of(DType::kBF16, {kBatch, half}), false},
      runtime::LaunchStep{
          "", {}, "one", {}, {0, 1, 2, 4}, {kBatch, half}, {{wide, 64}}, {}, "m.py:3"},
      runtime::LaunchStep{"",
                          {},
                          "two",
                          {},
                          {4, 5, 6},
                          {kLength},
                          {{kBatch, 1}, {half, 4}},
                          {{3, "IndexError", "index {0} is out of range"}},
                          "",
                          true},
      runtime::ReleaseStep{{4, 5}},
      runtime::ViewStep{7, 2, {DType::kF32, {2, 3}, {16, 1}}, 5},
      runtime::SizeStep{8, kBatch + kLength},
  };
  contents.plan.outputs = {6, 7};
  contents.outputs = {{"y", {"batch", "(length + 1)//2"}}, {"tail", {}}};
  contents.entries = {{0}, {64, 128}};
  file.manifest = R"({"format": 1})";
  file.code = {{"x86_64", "x86-64", {}}, std::string(200, '\xc3')};
#if defined(__aarch64__)
  file.code.target.architecture = "aarch64";
#endif
  file.weights.place({weights.data(), 4096});
  file.recipes = recipes();
  return file;
}

class Change {
 public:
  Change(std::string bytes, uint64_t seed) : bytes_(std::move(bytes)), random_(seed) {}

  std::string make() {
    const uint64_t changes = 1 + random_() % 4;
    for (uint64_t i = 0; i < changes; ++i) change();
    if (random_() % 2 == 0) repair();
    return std::move(bytes_);
  }

 private:
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }

  // Mostly in what is decoded: the table, and sections that are neither code nor weights.
  size_t place() {
    const size_t section = below(kNumSections + 1);
    if (section == kNumSections) return below(bytes_.size());
    const package::SectionEntry entry = entry_at(section);
    const auto kind = static_cast<package::SectionKind>(entry.kind);
    const bool is_decoded =
        kind != package::SectionKind::kCode && kind != package::SectionKind::kWeights;
    const size_t table = sizeof(package::FileHeader) + kNumSections * sizeof(package::SectionEntry);
    if (!is_decoded || entry.offset >= bytes_.size() || entry.bytes == 0)
      return std::min(below(table), bytes_.size() - 1);
    return std::min<size_t>(entry.offset + below(entry.bytes), bytes_.size() - 1);
  }

  package::SectionEntry entry_at(size_t index) const {
    package::SectionEntry entry{};
    const size_t at = sizeof(package::FileHeader) + index * sizeof(entry);
    if (at + sizeof(entry) <= bytes_.size()) std::memcpy(&entry, bytes_.data() + at, sizeof(entry));
    return entry;
  }

  void change() {
    switch (random_() % 8) {
    case 0: bytes_.resize(1 + below(bytes_.size())); return;
    case 1: bytes_.insert(place(), std::string(1 + below(9), static_cast<char>(random_()))); return;
    case 2: bytes_.erase(place(), 1 + below(9)); break;
    case 3: bytes_[place()] = '\xff'; return;
    case 4: bytes_[place()] = 0; return;
    default: bytes_[place()] = static_cast<char>(random_()); return;
    }
    if (bytes_.empty()) bytes_ = "x";
  }

  // Makes length and checksums what they should be.
  void repair() {
    package::FileHeader header{};
    const size_t table = sizeof(header) + kNumSections * sizeof(package::SectionEntry);
    if (bytes_.size() < table) return;
    std::memcpy(&header, bytes_.data(), sizeof(header));
    header.file_bytes = bytes_.size();
    for (size_t i = 0; i < kNumSections; ++i) {
      package::SectionEntry entry = entry_at(i);
      if (entry.offset > bytes_.size() || entry.bytes > bytes_.size() - entry.offset) continue;
      entry.checksum = hash_bytes(bytes_.data() + entry.offset, entry.bytes);
      std::memcpy(bytes_.data() + sizeof(header) + i * sizeof(entry), &entry, sizeof(entry));
    }
    header.checksum = hash_bytes(bytes_.data() + sizeof(header), table - sizeof(header));
    std::memcpy(bytes_.data(), &header, sizeof(header));
  }

  std::string bytes_;
  std::mt19937_64 random_;
};

void check_text(const mlcc_error& error) {
  MLCC_CHECK(std::memchr(error.text, 0, sizeof(error.text)) != nullptr && error.text[0] != 0,
             "an error without a text");
}

void ask_for_weights(mlcc_package* package) {
  mlcc_error error;
  size_t count = 0;
  if (mlcc_package_num_weights(package, &count, &error) != MLCC_OK) return check_text(error);
  for (size_t i = 0; i < count; ++i) {
    mlcc_tensor_info info;
    MLCC_CHECK(mlcc_package_weight(package, i, &info, &error) == MLCC_OK, "a weight is not told");
  }
  MLCC_CHECK(mlcc_package_refit(package, nullptr, 0, &error) == MLCC_OK, "no weight is refused");
}

// Asks for all that can be asked without running code.
void ask(mlcc_package* package) {
  ask_for_weights(package);
  constexpr size_t kMost = 8, kMostRank = 8;
  mlcc_error error;
  std::vector<mlcc_tensor> inputs(mlcc_package_num_inputs(package));
  std::vector<mlcc_tensor> outputs(mlcc_package_num_outputs(package));
  if (inputs.size() > kMost || outputs.size() > kMost) return;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1} << 40}) {
    std::vector<std::array<int64_t, kMostRank>> sizes(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      mlcc_tensor_info info;
      MLCC_CHECK(mlcc_package_input(package, i, &info) == MLCC_OK, "an input is not told");
      if (info.rank > static_cast<int32_t>(kMostRank)) return;
      for (int32_t d = 0; d < info.rank; ++d)
        sizes[i][static_cast<size_t>(d)] = info.sizes[d] < 0 ? size : info.sizes[d];
      inputs[i] = {nullptr, info.dtype, info.rank, sizes[i].data(), nullptr};
    }
    size_t bytes = 0;
    if (mlcc_package_arena_bytes(package, inputs.data(), inputs.size(), &bytes, &error) != MLCC_OK)
      check_text(error);
    mlcc_context* context = nullptr;
    if (mlcc_context_create(package, nullptr, &context, &error) != MLCC_OK)
      return check_text(error);
    if (mlcc_infer(context, inputs.data(), inputs.size(), outputs.data(), outputs.size(), &error) !=
        MLCC_OK)
      check_text(error);
    mlcc_context_destroy(context);
  }
}

void check(uint64_t seed) {
  static const std::string whole = package::bytes_of(example());
  const std::string bytes = seed == 1 ? whole : Change(whole, seed).make();
  // Of exactly this size, so that a sanitizer sees what is read behind it.
  void* memory = nullptr;
  MLCC_CHECK(::posix_memalign(&memory, 4096, bytes.size()) == 0, "no memory");
  const std::unique_ptr<void, decltype(&::free)> owner(memory, &::free);
  std::memcpy(memory, bytes.data(), bytes.size());
  mlcc_error error;
  mlcc_package* package = nullptr;
  const mlcc_status status =
      mlcc_package_open_memory(memory, bytes.size(), MLCC_CHECK_WEIGHTS, &package, &error);
  MLCC_CHECK(status != MLCC_INTERNAL, error.text);
  MLCC_CHECK(seed != 1 || status == MLCC_OK, error.text);
  if (status != MLCC_OK) return check_text(error);
  ask(package);
  mlcc_package_close(package);
}

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) { return mlcc::fuzz::run_seeds(argc, argv, mlcc::fuzz::check); }
