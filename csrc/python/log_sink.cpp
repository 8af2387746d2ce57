#include "python/log_sink.h"

#include <pybind11/pybind11.h>

#include <cstdio>
#include <string>

#include "support/logging.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// Python's numbers for its levels.
constexpr int kPythonDebug = 10;
constexpr int kPythonInfo = 20;
constexpr int kPythonWarning = 30;

py::object logger_of(LogChannel channel) {
  const std::string name = "mlcc." + std::string(log_channel_name(channel));
  return py::module_::import("logging").attr("getLogger")(name);
}

int python_level(LogLevel level) {
  switch (level) {
  case LogLevel::kDebug: return kPythonDebug;
  case LogLevel::kInfo: return kPythonInfo;
  case LogLevel::kOff:
  case LogLevel::kWarning: return kPythonWarning;
  }
  MLCC_UNREACHABLE("log level ", static_cast<int>(level));
}

void write(LogChannel channel, LogLevel level, std::string_view message) {
  if (Py_IsInitialized() == 0) {
    std::fprintf(stderr, "mlcc: %.*s\n", static_cast<int>(message.size()), message.data());
    return;
  }
  const py::gil_scoped_acquire gil;
  try {
    logger_of(channel).attr("log")(python_level(level), "%s",
                                   py::str(message.data(), message.size()));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("mlcc's log sink");  // a log line must not fail what it tells about
  }
}

}  // namespace

void install_log_sink() { set_log_sink(write); }

void sync_log_levels() {
  for (int i = 0; i < kNumLogChannels; ++i) {
    const auto channel = static_cast<LogChannel>(i);
    const py::object logger = logger_of(channel);
    const auto is_on = [&](int level) {
      return py::cast<bool>(logger.attr("isEnabledFor")(level));
    };
    LogLevel level = LogLevel::kOff;
    if (is_on(kPythonInfo)) level = LogLevel::kInfo;
    if (is_on(kPythonDebug)) level = LogLevel::kDebug;
    set_log_level(channel, level);
  }
}

}  // namespace mlcc::python
