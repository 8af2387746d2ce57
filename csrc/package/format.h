// The file form of a package: a header, a table of sections, code on a page bound. Integers are
// little-endian. docs/package_format.md tells it for readers.
#pragma once

#include <cstdint>

#include "support/hash.h"

namespace mlcc::package {

constexpr char kMagic[8] = {'M', 'L', 'C', 'C', 'P', 'K', 'G', '\n'};
// A runtime reads files of its major version whose minor version is not newer than its own.
constexpr uint32_t kMajorVersion = 1;
constexpr uint32_t kMinorVersion = 0;
constexpr uint64_t kCodeAlignment = 4096;  // a page, since code is mapped by itself
constexpr uint64_t kWeightAlignment = 64;  // of weights and of all other sections
constexpr uint32_t kMostSections = 64;

enum class SectionKind : uint32_t {
  kManifest = 1,  // JSON, for people and for Python
  kPlan = 2,      // contents.h
  kCode = 3,      // for one target, whose name and features stand in kTargets
  kWeights = 4,
  kTargets = 5,
  kRecipes = 6,  // recipes.h; only in files whose weights can be exchanged
};

struct FileHeader {
  char magic[8];
  uint32_t major_version;
  uint32_t minor_version;
  uint64_t file_bytes;
  uint32_t num_sections;
  uint32_t reserved;
  Hash128 checksum;  // of the table of sections, which follows
};

struct SectionEntry {
  uint32_t kind;
  uint32_t index;  // of a kCode section: its target
  uint64_t offset;
  uint64_t bytes;
  Hash128 checksum;  // of weights it is looked at only when asked for
};

constexpr uint64_t alignment_of(SectionKind kind) {
  return kind == SectionKind::kCode ? kCodeAlignment : kWeightAlignment;
}

static_assert(sizeof(FileHeader) == 48 && sizeof(SectionEntry) == 40);

}  // namespace mlcc::package
