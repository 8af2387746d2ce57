#include "support/logging.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace mlcc {
namespace {

constexpr std::array<std::string_view, kNumLogChannels> kNames = {
    "recompiles", "graph", "fusion", "kernels", "cache", "fallback", "perf"};

std::array<std::atomic<LogLevel>, kNumLogChannels> levels{};

struct SinkSlot {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;  // null: stderr
};

// Never destroyed: threads may still log while the process ends.
SinkSlot& sink_slot() {
  static SinkSlot& slot = *new SinkSlot;
  return slot;
}

void write_to_stderr(LogChannel channel, LogLevel level, std::string_view message) {
  const std::string_view mark = level == LogLevel::kWarning ? "warning: " : "";
  // One call, so that lines of different threads do not mix.
  const std::string line =
      detail::join("mlcc ", log_channel_name(channel), ": ", mark, message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string_view log_channel_name(LogChannel channel) {
  return kNames[static_cast<size_t>(channel)];
}

std::optional<LogChannel> parse_log_channel(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<LogChannel>(i);
  return std::nullopt;
}

LogLevel log_level(LogChannel channel) {
  return levels[static_cast<size_t>(channel)].load(std::memory_order_relaxed);
}

void set_log_level(LogChannel channel, LogLevel level) {
  levels[static_cast<size_t>(channel)].store(level, std::memory_order_relaxed);
}

void set_log_levels(std::string_view list) {
  std::array<LogLevel, kNumLogChannels> chosen{};
  while (!list.empty()) {
    std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(name.size() + (name.size() < list.size() ? 1 : 0));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name.empty()) continue;
    const LogLevel level = name.starts_with('+') ? LogLevel::kDebug : LogLevel::kInfo;
    if (level == LogLevel::kDebug) name.remove_prefix(1);
    const std::optional<LogChannel> channel = parse_log_channel(name);
    MLCC_USER_CHECK(channel || name == "all", "log channel '", name,
                    "' is unknown, expected recompiles, graph, fusion, kernels, cache, fallback, "
                    "perf or all");
    if (channel) {
      chosen[static_cast<size_t>(*channel)] = level;
    } else {
      chosen.fill(level);
    }
  }
  for (int i = 0; i < kNumLogChannels; ++i)
    set_log_level(static_cast<LogChannel>(i), chosen[static_cast<size_t>(i)]);
}

bool enabled(LogChannel channel, LogLevel level) {
  return level != LogLevel::kOff && log_level(channel) >= level;
}

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  SinkSlot& slot = sink_slot();
  {
    const std::lock_guard lock(slot.mutex);
    slot.sink.swap(next);
  }
  // The old sink dies here, outside the lock: it may hold Python objects.
}

namespace detail {

void write_log(LogChannel channel, LogLevel level, std::string_view message) {
  SinkSlot& slot = sink_slot();
  std::shared_ptr<const LogSink> sink;
  {
    const std::lock_guard lock(slot.mutex);
    sink = slot.sink;
  }
  if (sink != nullptr) {
    (*sink)(channel, level, message);
  } else {
    write_to_stderr(channel, level, message);
  }
}

}  // namespace detail
}  // namespace mlcc
