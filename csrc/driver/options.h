// All options of a compilation as one value. The rows stand in options.def.
//
// The caller (mlcc.config in Python, the tools' command lines) decides where a value comes from;
// nothing below the driver reads an environment variable. `config.patch` and `options=` make a new
// value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mlcc::driver {

struct Options {
#define MLCC_OPTION(name, type, default_value, env, option_class, help) type name = default_value;
#include "driver/options.def"
#undef MLCC_OPTION

  // Sets an option from text: 1, true, on, yes or 0, false, off, no; an integer; any text. Error on
  // an unknown name (with the nearest one) or a text that is no value of its type.
  void set(std::string_view name, std::string_view text);

  // Every option of class `code` as "name=value" lines, in the order of the table: part of each
  // cache key.
  std::string code_fingerprint() const;

  // The folder of caches: `cache_dir`, else mlcc in $XDG_CACHE_HOME or ~/.cache; empty if there is
  // no home either.
  std::string cache_directory() const;
  // `dump_dir`; empty if it is not set.
  std::string dump_directory() const;

  friend bool operator==(const Options&, const Options&) = default;
};

// Of an option in MiB: never negative, at most what fits.
int64_t bytes_of_mebibytes(int64_t mebibytes);

// The defaults, changed by the environment variables that are set.
Options options_from_environment();

enum class OptionClass : uint8_t { code, run };

struct OptionRow {
  std::string_view name;
  std::string_view type;     // "bool", "int" or "str"
  std::string default_text;  // as `set` reads it
  std::string_view env;
  OptionClass option_class;
  std::string_view help;
};
std::span<const OptionRow> option_table();

}  // namespace mlcc::driver
