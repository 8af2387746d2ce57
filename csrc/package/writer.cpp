#include "package/writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "package/format.h"
#include "support/error.h"
#include "support/hash.h"

namespace mlcc::package {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// A file under a temporary name, which is renamed when all is written and deleted otherwise.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + "." + std::to_string(::getpid()) + ".tmp"),
        file_(std::fopen(temporary_.c_str(), "wb"), &std::fclose) {
    if (file_ == nullptr) fail();
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!temporary_.empty()) std::remove(temporary_.c_str());
  }

  void write(std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) fail();
    written_ += bytes.size();
  }

  void pad_to(uint64_t place) {
    const std::string zeros(place - written_, '\0');
    write(zeros);
  }

  void finish() {
    if (std::fclose(file_.release()) != 0) fail();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    temporary_.clear();
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(detail::join("package ", path_, ": ", std::strerror(errno)));
  }

  const std::string path_;
  std::string temporary_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  uint64_t written_ = 0;
};

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

int64_t WeightLayout::place(const Weight& weight) {
  for (const auto& [offset, known] : weights_)
    if (known.data == weight.data && known.bytes == weight.bytes) return offset;
  const auto offset =
      static_cast<int64_t>(round_up(static_cast<uint64_t>(bytes_), kWeightAlignment));
  weights_.emplace_back(offset, weight);
  bytes_ = offset + weight.bytes;
  return offset;
}

std::string WeightLayout::gathered() const {
  std::string bytes(static_cast<size_t>(bytes_), '\0');
  for (const auto& [offset, weight] : weights_)
    if (weight.bytes > 0)
      std::memcpy(bytes.data() + offset, weight.data, static_cast<size_t>(weight.bytes));
  return bytes;
}

void write_package(const std::string& path, const PackageFile& package) {
  std::vector<std::pair<SectionKind, std::string>> sections = {
      {SectionKind::kManifest, package.manifest},
      {SectionKind::kTargets, encode_targets({package.code.target})},
      {SectionKind::kPlan, encode_contents(package.contents)},
      {SectionKind::kCode, package.code.code},
  };
  if (package.recipes)
    sections.emplace_back(SectionKind::kRecipes, encode_recipes(*package.recipes));
  sections.emplace_back(SectionKind::kWeights, package.weights.gathered());
  uint64_t end = sizeof(FileHeader) + sections.size() * sizeof(SectionEntry);
  std::string table;
  std::vector<uint64_t> places;
  for (const auto& [kind, bytes] : sections) {
    places.push_back(round_up(end, alignment_of(kind)));
    end = places.back() + bytes.size();
    const SectionEntry entry{static_cast<uint32_t>(kind), 0, places.back(), bytes.size(),
                             hash_bytes(bytes)};
    table += bytes_of(entry);
  }
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.major_version = kMajorVersion;
  header.minor_version = kMinorVersion;
  header.file_bytes = end;
  header.num_sections = static_cast<uint32_t>(sections.size());
  header.checksum = hash_bytes(table);

  NewFile file(path);
  file.write(bytes_of(header));
  file.write(table);
  for (size_t i = 0; i < sections.size(); ++i) {
    file.pad_to(places[i]);
    file.write(sections[i].second);
  }
  file.finish();
}

}  // namespace mlcc::package
