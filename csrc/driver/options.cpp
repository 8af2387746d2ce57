#include "driver/options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/error.h"

namespace mlcc::driver {
namespace {

template <typename T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, int64_t>) return "int";
  if constexpr (std::is_same_v<T, std::string>) return "str";
}

std::string to_text(bool value) { return value ? "1" : "0"; }
std::string to_text(int64_t value) { return std::to_string(value); }
std::string to_text(const std::string& value) { return value; }

bool is_one_of(std::string_view text, std::span<const std::string_view> words) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(words.begin(), words.end(), lower) != words.end();
}

void parse(std::string_view name, std::string_view text, bool& value) {
  static constexpr std::array<std::string_view, 4> kTrue = {"1", "true", "on", "yes"};
  static constexpr std::array<std::string_view, 5> kFalse = {"0", "false", "off", "no", ""};
  const bool is_true = is_one_of(text, kTrue);
  MLCC_USER_CHECK(is_true || is_one_of(text, kFalse), "option ", name, ": expected 0 or 1, found '",
                  text, "'");
  value = is_true;
}

void parse(std::string_view name, std::string_view text, int64_t& value) {
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  MLCC_USER_CHECK(error == std::errc() && end == text.data() + text.size(), "option ", name,
                  ": expected an integer, found '", text, "'");
  value = parsed;
}

void parse(std::string_view, std::string_view text, std::string& value) { value = text; }

// Insertions, deletions and replacements that lead from a to b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

std::string_view nearest_option(std::string_view name) {
  // A name that was cut short is nearer than any misspelling.
  const auto rank = [&](const OptionRow& row) {
    const bool is_beginning = !name.empty() && row.name.starts_with(name);
    return std::pair(!is_beginning, edit_distance(name, row.name));
  };
  const auto table = option_table();
  return std::min_element(table.begin(), table.end(),
                          [&](const OptionRow& a, const OptionRow& b) { return rank(a) < rank(b); })
      ->name;
}

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// A leading ~ as the shell reads it.
std::string expand_home(const std::string& path) {
  const std::string home = environment("HOME");
  if (home.empty() || !(path == "~" || path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

}  // namespace

int64_t bytes_of_mebibytes(int64_t mebibytes) {
  return std::clamp<int64_t>(mebibytes, 0, std::numeric_limits<int64_t>::max() >> 20) << 20;
}

void Options::set(std::string_view name, std::string_view text) {
#define MLCC_OPTION(option, type, default_value, env, option_class, help)                          \
  if (name == #option) return parse(name, text, option);
#include "driver/options.def"
#undef MLCC_OPTION
  throw Error(detail::join("unknown option ", name, "; nearest: ", nearest_option(name)));
}

std::string Options::code_fingerprint() const {
  std::string text;
#define MLCC_OPTION(option, type, default_value, env, option_class, help)                          \
  if (OptionClass::option_class == OptionClass::code) text += #option "=" + to_text(option) + "\n";
#include "driver/options.def"
#undef MLCC_OPTION
  return text;
}

std::string Options::cache_directory() const {
  if (!cache_dir.empty()) return expand_home(cache_dir);
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/mlcc";
  const std::string home = environment("HOME");
  return home.empty() ? home : home + "/.cache/mlcc";
}

std::string Options::dump_directory() const { return expand_home(dump_dir); }

Options options_from_environment() {
  Options options;
  for (const OptionRow& row : option_table()) {
    const char* text = std::getenv(std::string(row.env).c_str());
    if (text == nullptr || (*text == '\0' && row.type == "int")) continue;
    options.set(row.name, text);
  }
  return options;
}

std::span<const OptionRow> option_table() {
  static const auto* table = new std::vector<OptionRow>{
#define MLCC_OPTION(option, type, default_value, env, option_class, help)                          \
  {#option, type_name<type>(), to_text(type(default_value)), env, OptionClass::option_class, help},
#include "driver/options.def"
#undef MLCC_OPTION
  };
  return *table;
}

}  // namespace mlcc::driver
