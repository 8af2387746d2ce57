// What mlcc tells about its decisions, by channel: what was recompiled, fused, cached, and why.
//
//   if (enabled(LogChannel::kFusion)) explain_at_length();
//   log(LogChannel::kFusion, "group ", id, " split: ", reason);
//
// All channels are off until someone switches them on (driver or Python, from MLCC_LOGS). Messages
// go to one process-wide sink, by default stderr. Everything here may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "support/error.h"

namespace mlcc {

enum class LogChannel : uint8_t {
  kRecompiles,  // which guard failed, and what to type to avoid it
  kGraph,       // graphs as they are captured and rewritten
  kFusion,      // what shares a kernel, and what does not
  kKernels,     // what was compiled, for which target, in what time
  kCache,       // hits, misses and what made the difference
  kFallback,    // what went to ATen
  kPerf         // times and the verdicts drawn from them
};
constexpr int kNumLogChannels = 7;

// A channel that is off still tells warnings: what a user must know without having asked.
enum class LogLevel : uint8_t { kOff, kWarning, kInfo, kDebug };

std::string_view log_channel_name(LogChannel channel);  // "recompiles", ...
std::optional<LogChannel> parse_log_channel(std::string_view name);

LogLevel log_level(LogChannel channel);
void set_log_level(LogChannel channel, LogLevel level);
// Sets all channels from a list: "fusion,+cache" is fusion at kInfo, cache at kDebug and the rest
// off; "all" names every channel. Error on an unknown name, and nothing is changed then.
void set_log_levels(std::string_view list);

// Costs one relaxed load.
bool enabled(LogChannel channel, LogLevel level = LogLevel::kInfo);

// Receives whole messages without a final newline, possibly from several threads at once. No lock
// is held during the call, so a sink may take the GIL or log itself; a call that has begun may
// outlast set_log_sink.
using LogSink = std::function<void(LogChannel, LogLevel, std::string_view)>;
void set_log_sink(LogSink sink);  // an empty function brings back stderr

namespace detail {
void write_log(LogChannel channel, LogLevel level, std::string_view message);
}  // namespace detail

// The parts are streamed, and only if the channel is enabled.
template <typename... Parts>
void log(LogChannel channel, const Parts&... parts) {
  if (enabled(channel)) detail::write_log(channel, LogLevel::kInfo, detail::join(parts...));
}

template <typename... Parts>
void log_debug(LogChannel channel, const Parts&... parts) {
  if (enabled(channel, LogLevel::kDebug))
    detail::write_log(channel, LogLevel::kDebug, detail::join(parts...));
}

// Always written, whatever the channel's level.
template <typename... Parts>
void log_warning(LogChannel channel, const Parts&... parts) {
  detail::write_log(channel, LogLevel::kWarning, detail::join(parts...));
}

}  // namespace mlcc
