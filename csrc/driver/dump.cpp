#include "driver/dump.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "support/logging.h"

namespace mlcc::driver {
namespace {

std::atomic<int> next_graph{0};

bool contains_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

std::string padded(int number) {
  std::string digits = std::to_string(number);
  return std::string(digits.size() < 3 ? 3 - digits.size() : 0, '0') + digits;
}

}  // namespace

Dump::Dump(const Options& options, std::string_view name) : stages_(options.dump), name_(name) {
  if (stages_.empty()) return;
  const std::string base =
      options.dump_dir.empty() ? options.cache_directory() + "/repro" : options.dump_dir;
  folder_ = base + "/" + padded(next_graph++) + "_" + name_;
}

bool Dump::wants(std::string_view stage) const { return contains_word(stages_, stage); }

void Dump::write(std::string_view stage, std::string_view label, std::string_view text) {
  if (!wants(stage)) return;
  std::error_code error;
  const std::filesystem::path folder(folder_);
  if (next_ == 0 && std::filesystem::create_directories(folder, error))
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  const std::string path =
      folder_ + "/" + padded(next_++) + "_" + std::string(label) + "." + std::string(stage);
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file) log_warning(LogChannel::kGraph, "dump: cannot write ", path);
}

}  // namespace mlcc::driver
