#include "python/process/log_sink.h"

#include <pybind11/pybind11.h>

#include <array>
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

// Never released: threads may log while the interpreter ends.
std::array<PyObject*, kNumLogChannels> loggers{};

py::handle logger_of(LogChannel channel) { return loggers[static_cast<size_t>(channel)]; }

// logging.Logger.isEnabledFor without running Python code: where a thread runs that while the
// interpreter ends, it ends there, and the stack of C++ above it cannot be unwound without the
// lock.
bool is_enabled(py::handle logger, int level) {
  if (py::cast<bool>(logger.attr("disabled"))) return false;
  if (py::cast<int>(logger.attr("manager").attr("disable")) >= level) return false;
  for (py::object one = py::reinterpret_borrow<py::object>(logger); !one.is_none();
       one = one.attr("parent"))
    if (const int own = py::cast<int>(one.attr("level")); own != 0) return level >= own;
  return true;
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

void install_log_sink() {
  for (int i = 0; i < kNumLogChannels; ++i) {
    const std::string name = "mlcc." + std::string(log_channel_name(static_cast<LogChannel>(i)));
    loggers[static_cast<size_t>(i)] =
        py::module_::import("logging").attr("getLogger")(name).release().ptr();
  }
  set_log_sink(write);
}

void sync_log_levels() {
  for (int i = 0; i < kNumLogChannels; ++i) {
    const auto channel = static_cast<LogChannel>(i);
    const auto is_on = [&](int level) { return is_enabled(logger_of(channel), level); };
    LogLevel level = LogLevel::kOff;
    if (is_on(kPythonInfo)) level = LogLevel::kInfo;
    if (is_on(kPythonDebug)) level = LogLevel::kDebug;
    set_log_level(channel, level);
  }
}

}  // namespace mlcc::python
