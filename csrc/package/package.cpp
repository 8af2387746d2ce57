#include "package/package.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "package/format.h"
#include "package/status.h"
#include "package/targets.h"

namespace mlcc::package {
// Reads a file's bytes into a package.
class Package::Opener {
 public:
  Opener(std::string_view bytes, uint32_t flags, std::string what)
      : bytes_(bytes), flags_(flags), what_(std::move(what)) {}

  std::shared_ptr<Package> open(const MappedFile* file) {
    read_table();
    package_->manifest_ = contents_of(SectionKind::kManifest);
    check_target();
    const std::string_view code = contents_of(SectionKind::kCode);
    const std::string_view weights = contents_of(SectionKind::kWeights);
    Contents contents =
        decode_contents(contents_of(SectionKind::kPlan), static_cast<int64_t>(code.size()),
                        static_cast<int64_t>(weights.size()));
    place_code(code, file);
    place_weights(weights, file);
    package_->program_ =
        std::make_unique<const Program>(std::move(contents), package_->code_.get());
    package_->weights_ = weights_in_file();
    if (has_section(SectionKind::kRecipes)) package_->recipes_ = contents_of(SectionKind::kRecipes);
    return std::move(package_);
  }

 private:
  template <typename T>
  T read(uint64_t at) const {
    MLCC_STATUS_CHECK(at <= bytes_.size() && sizeof(T) <= bytes_.size() - at, MLCC_INVALID_FILE,
                      what_, ": the file ends early");
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }

  void read_table() {
    const auto header = read<FileHeader>(0);
    MLCC_STATUS_CHECK(std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0, MLCC_INVALID_FILE,
                      what_, ": no package of mlcc");
    MLCC_STATUS_CHECK(
        header.major_version == kMajorVersion && header.minor_version <= kMinorVersion,
        MLCC_UNSUPPORTED, what_, ": found format ", header.major_version, ".", header.minor_version,
        ", expected ", kMajorVersion, ".0 to ", kMajorVersion, ".", kMinorVersion);
    MLCC_STATUS_CHECK(header.file_bytes == bytes_.size(), MLCC_INVALID_FILE, what_, ": found ",
                      bytes_.size(), " bytes, expected ", header.file_bytes);
    MLCC_STATUS_CHECK(header.num_sections <= kMostSections, MLCC_INVALID_FILE, what_, ": has ",
                      header.num_sections, " sections");
    for (uint32_t i = 0; i < header.num_sections; ++i)
      table_.push_back(read<SectionEntry>(sizeof(FileHeader) + i * sizeof(SectionEntry)));
    const std::string_view table =
        bytes_.substr(sizeof(FileHeader), table_.size() * sizeof(SectionEntry));
    MLCC_STATUS_CHECK(hash_bytes(table) == header.checksum, MLCC_INVALID_FILE, what_,
                      ": the table of sections is damaged");
  }

  bool has_section(SectionKind kind) const {
    return std::any_of(table_.begin(), table_.end(), [&](const SectionEntry& entry) {
      return entry.kind == static_cast<uint32_t>(kind);
    });
  }

  const SectionEntry& section(SectionKind kind) const {
    for (const SectionEntry& entry : table_)
      if (entry.kind == static_cast<uint32_t>(kind)) return entry;
    throw StatusError(MLCC_INVALID_FILE,
                      detail::join(what_, ": has no section ", static_cast<uint32_t>(kind)));
  }

  std::string_view contents_of(SectionKind kind) const {
    const SectionEntry& entry = section(kind);
    MLCC_STATUS_CHECK(entry.offset % alignment_of(kind) == 0 && entry.offset <= bytes_.size() &&
                          entry.bytes <= bytes_.size() - entry.offset,
                      MLCC_INVALID_FILE, what_, ": section ", entry.kind,
                      " lies outside of the file");
    const std::string_view contents = bytes_.substr(entry.offset, entry.bytes);
    const bool is_checked = kind != SectionKind::kWeights || (flags_ & MLCC_CHECK_WEIGHTS) != 0;
    MLCC_STATUS_CHECK(!is_checked || hash_bytes(contents) == entry.checksum, MLCC_INVALID_FILE,
                      what_, ": section ", entry.kind, " is damaged");
    return contents;
  }

  void check_target() const {
    const std::vector<Target> targets = decode_targets(contents_of(SectionKind::kTargets));
    MLCC_STATUS_CHECK(targets.size() == 1, MLCC_INVALID_FILE, what_, ": has ", targets.size(),
                      " targets");
    const std::string missing = missing_here(targets[0]);
    MLCC_STATUS_CHECK(missing.empty(), MLCC_UNSUPPORTED, what_, ": its code is for ",
                      targets[0].cpu, ", and this machine has no ", missing);
  }

  // Pages of the file where they are such here, else a copy.
  void place_code(std::string_view code, const MappedFile* file) {
    package_->code_bytes_ = static_cast<int64_t>(code.size());
    if (code.empty()) return;
    const auto offset = static_cast<int64_t>(section(SectionKind::kCode).offset);
    const bool is_mapped = file != nullptr && offset % ::sysconf(_SC_PAGESIZE) == 0;
    package_->code_ =
        is_mapped ? map_code(file->descriptor, offset, static_cast<int64_t>(code.size()), what_)
                  : copy_code(code);
  }

  void place_weights(std::string_view weights, const MappedFile* file) {
    if (file != nullptr) package_->file_ = *file;
    const bool is_aligned = reinterpret_cast<uintptr_t>(weights.data()) % kWeightAlignment == 0;
    MLCC_STATUS_CHECK(is_aligned, MLCC_INVALID_ARGUMENT, what_, ": the memory is not aligned to ",
                      kWeightAlignment, " bytes");
    if ((flags_ & MLCC_COPY_WEIGHTS) == 0) {
      weights_ = Memory(package_->file_.memory, weights.data());
      return;
    }
    const WeightMemory copy(static_cast<int64_t>(weights.size()));
    if (!weights.empty()) std::memcpy(copy.data(), weights.data(), weights.size());
    weights_ = copy.finished();
  }

  WeightsPtr weights_in_file() const {
    auto found = std::make_shared<Weights>();
    for (const Input& input : package_->program_->inputs())
      found->data.push_back(input.kind == InputKind::kWeight
                                ? Memory(weights_, weights_.get() + input.offset)
                                : nullptr);
    return found;
  }

  const std::string_view bytes_;
  const uint32_t flags_;
  const std::string what_;
  std::vector<SectionEntry> table_;
  Memory weights_;
  std::shared_ptr<Package> package_{new Package()};
};

std::shared_ptr<Package> Package::open(const std::string& path, uint32_t flags) {
  const MappedFile file = MappedFile::open(path);
  return Opener({file.memory.get(), static_cast<size_t>(file.bytes)}, flags, path).open(&file);
}

std::shared_ptr<Package> Package::open_memory(std::string_view bytes, uint32_t flags) {
  return Opener(bytes, flags, "package").open(nullptr);
}

WeightsPtr Package::weights() const {
  const std::lock_guard lock(mutex_);
  return weights_;
}

std::shared_ptr<const Refit> Package::refit() const {
  MLCC_STATUS_CHECK(!recipes_.empty(), MLCC_UNSUPPORTED,
                    "package: its weights cannot be exchanged, since it was exported without that");
  const std::lock_guard lock(refit_mutex_);
  if (refit_ == nullptr)
    refit_ = std::make_shared<const Refit>(
        decode_recipes(recipes_, program_->inputs().size(), code_bytes_), *program_, code_.get());
  return refit_;
}

void Package::exchange_weights(std::span<const mlcc_weight> given) {
  const std::shared_ptr<const Refit> made = refit();
  const std::lock_guard one_at_a_time(refit_mutex_);
  WeightsPtr weights = made->refitted(this->weights(), given);
  const std::lock_guard lock(mutex_);
  weights_.swap(weights);
}

}  // namespace mlcc::package
