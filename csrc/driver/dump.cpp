#include "driver/dump.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "graph/passes/pipeline.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeptFolders = 20;  // of dumps; older ones go
constexpr std::string_view kPrefix = "dump-";
constexpr std::array<std::string_view, 6> kStages = {"graph", "loop", "llvm", "asm", "cuda", "ptx"};

std::atomic<int> next_graph{0};

std::string padded(int number) {
  std::string digits = std::to_string(number);
  return std::string(digits.size() < 3 ? 3 - digits.size() : 0, '0') + digits;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

void check_label(std::string_view stage, std::string_view label) {
  if (stage != "graph" || label.empty() || label == "input" || label == "fused" ||
      graph::parse_pass(label))
    return;
  std::string known = "input";
  for (const graph::PassInfo& info : graph::all_passes()) known += ", " + std::string(info.name);
  throw Error(detail::join("option dump: unknown pass ", label, "; known: ", known, ", fused"));
}

// With its missing parents, for the user alone.
bool make_private(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path) return false;
  return make_private(path.parent_path()) && (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

// Of this process, below `repro`: dump-20260131-235959-4711.
std::string folder_of_process(const std::string& repro) {
  static const std::string name = [] {
    const std::time_t now = std::time(nullptr);
    std::tm time{};
    ::localtime_r(&now, &time);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &time);
    return detail::join(kPrefix, text.data(), "-", ::getpid());
  }();
  return repro + "/" + name;
}

void remove_old(const fs::path& repro) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(repro, error))
    if (entry.path().filename().string().starts_with(kPrefix)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i + kKeptFolders < found.size(); ++i) fs::remove_all(found[i], error);
}

}  // namespace

Dump::Dump(const Options& options, std::string name) : name_(std::move(name)) {
  std::string_view list = options.dump;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view word = trimmed(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (word.empty()) continue;
    const size_t at = std::min(word.find('@'), word.size());
    const std::string_view stage = word.substr(0, at);
    const std::string_view label = word.substr(std::min(at + 1, word.size()));
    MLCC_USER_CHECK(std::find(kStages.begin(), kStages.end(), stage) != kStages.end(),
                    "option dump: unknown stage ", stage,
                    "; known: graph, loop, llvm, asm, cuda, ptx");
    check_label(stage, label);
    wishes_.push_back({std::string(stage), std::string(label)});
  }
  if (wishes_.empty()) return;
  const std::string cache = options.cache_directory();
  base_ = options.dump_directory();
  if (base_.empty() && !cache.empty()) base_ = folder_of_process(cache + "/repro");
}

bool Dump::wants(std::string_view stage) const {
  return std::any_of(wishes_.begin(), wishes_.end(),
                     [&](const Wish& wish) { return wish.stage == stage; });
}

bool Dump::make_folder() {
  if (base_.empty()) return false;
  const fs::path base(base_);
  if (!make_private(base)) return false;
  if (base.filename().string().starts_with(kPrefix)) remove_old(base.parent_path());
  // Another process may have taken the number.
  do folder_ = base_ + "/" + padded(next_graph++) + "_" + name_;
  while (::mkdir(folder_.c_str(), 0700) != 0 && errno == EEXIST);
  return fs::is_directory(folder_);
}

void Dump::write(std::string_view stage, std::string_view label, std::string_view text) {
  const bool is_wanted = std::any_of(wishes_.begin(), wishes_.end(), [&](const Wish& wish) {
    return wish.stage == stage && (wish.label.empty() || wish.label == label);
  });
  if (!is_wanted || has_failed_) return;
  if (folder_.empty() && !make_folder()) {
    log_warning(LogChannel::kGraph, "dump: cannot write to ",
                base_.empty() ? "a cache folder: there is no home; set MLCC_DUMP_DIR" : base_);
    has_failed_ = true;
    return;
  }
  const std::string path =
      folder_ + "/" + padded(next_++) + "_" + std::string(label) + "." + std::string(stage);
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file) log_warning(LogChannel::kGraph, "dump: cannot write ", path);
}

}  // namespace mlcc::driver
