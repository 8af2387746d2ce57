#include "package/package.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "package/format.h"
#include "package/status.h"
#include "runtime/host_kernel.h"

namespace mlcc::package {
namespace {

// Steps in the order in which they run: what a slot is when a step reads it.
class PlanChecker {
 public:
  explicit PlanChecker(const runtime::ExecutablePlan& plan)
      : is_filled_(static_cast<size_t>(plan.num_slots), false) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) fill(static_cast<runtime::Slot>(i));
    for (const runtime::Step& step : plan.steps)
      std::visit([this](const auto& one) { check(one); }, step);
    for (const runtime::Slot slot : plan.outputs) need(slot);
  }

 private:
  void fill(runtime::Slot slot) { is_filled_[static_cast<size_t>(slot)] = true; }
  void need(runtime::Slot slot) const {
    MLCC_STATUS_CHECK(is_filled_[static_cast<size_t>(slot)], MLCC_INVALID_FILE, "plan: slot ", slot,
                      " is used before it is filled");
  }

  void check(const runtime::AllocateStep& step) { fill(step.slot); }
  void check(const runtime::LaunchStep& step) {
    for (const runtime::Slot slot : step.buffers) need(slot);
  }
  void check(const runtime::ViewStep& step) {
    need(step.base);
    fill(step.slot);
  }
  void check(const runtime::BindStep& step) { need(step.slot); }
  void check(const runtime::ReleaseStep& step) {
    for (const runtime::Slot slot : step.slots) need(slot);
  }
  void check(const runtime::SizeStep& step) { fill(step.slot); }
  void check(const runtime::ExternStep&) { MLCC_UNREACHABLE("a call in a package"); }

  std::vector<bool> is_filled_;
};

}  // namespace

// Reads a file's bytes into a package.
class Package::Opener {
 public:
  Opener(std::string_view bytes, uint32_t flags, std::string what)
      : bytes_(bytes), flags_(flags), what_(std::move(what)) {}

  std::shared_ptr<const Package> open(const MappedFile* file) {
    read_table();
    package_->manifest_ = contents_of(SectionKind::kManifest);
    check_target();
    const std::string_view code = contents_of(SectionKind::kCode);
    const std::string_view weights = contents_of(SectionKind::kWeights);
    Contents contents =
        decode_contents(contents_of(SectionKind::kPlan), static_cast<int64_t>(code.size()),
                        static_cast<int64_t>(weights.size()));
    PlanChecker(contents.plan);
    place_code(code, file);
    place_weights(weights, file);
    std::vector<runtime::KernelPtr> kernels = kernels_of(contents);
    package_->executable_ = executable_of(std::move(contents.plan), std::move(kernels));
    package_->ports_ = std::make_unique<const Ports>(contents, *package_->executable_);
    package_->inputs_ = std::move(contents.inputs);
    return std::move(package_);
  }

 private:
  // Of a plan that is inconsistent where the decoder does not see it.
  static std::unique_ptr<const runtime::Executable>
  executable_of(runtime::ExecutablePlan plan, std::vector<runtime::KernelPtr> kernels) {
    try {
      return std::make_unique<const runtime::Executable>(std::move(plan), std::move(kernels));
    } catch (const InternalError& error) {
      throw StatusError(MLCC_INVALID_FILE, error.what());
    }
  }

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
    package_->weights_ = (flags_ & MLCC_COPY_WEIGHTS) != 0 && !weights.empty()
                             ? copy_weights(weights)
                             : Memory(package_->file_.memory, weights.data());
  }

  std::vector<runtime::KernelPtr> kernels_of(const Contents& contents) const {
    std::vector<runtime::KernelPtr> kernels;
    for (const std::vector<int64_t>& entries : contents.entries) {
      std::vector<runtime::PhaseFunction> phases;
      for (const int64_t entry : entries)
        phases.push_back(reinterpret_cast<runtime::PhaseFunction>(
            const_cast<char*>(package_->code_.get()) + entry));
      kernels.push_back(std::make_shared<runtime::HostKernel>("k", std::move(phases)));
    }
    return kernels;
  }

  const std::string_view bytes_;
  const uint32_t flags_;
  const std::string what_;
  std::vector<SectionEntry> table_;
  std::shared_ptr<Package> package_{new Package()};
};

std::shared_ptr<const Package> Package::open(const std::string& path, uint32_t flags) {
  const MappedFile file = MappedFile::open(path);
  return Opener({file.memory.get(), static_cast<size_t>(file.bytes)}, flags, path).open(&file);
}

std::shared_ptr<const Package> Package::open_memory(std::string_view bytes, uint32_t flags) {
  return Opener(bytes, flags, "package").open(nullptr);
}

}  // namespace mlcc::package
