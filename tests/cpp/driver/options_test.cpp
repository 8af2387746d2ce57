#include "driver/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <string>

#include "support/error.h"

namespace mlcc::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string fault_of(std::string_view name, std::string_view text) {
  Options options;
  try {
    options.set(name, text);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Options, AreSetFromText) {
  Options options;
  for (const char* text : {"1", "true", "On", "YES"}) {
    options.strict = false;
    options.set("strict", text);
    EXPECT_TRUE(options.strict) << text;
  }
  for (const char* text : {"0", "false", "OFF", "no", ""}) {
    options.strict = true;
    options.set("strict", text);
    EXPECT_FALSE(options.strict) << text;
  }
  options.set("cache_size_mb", "17");
  EXPECT_EQ(options.cache_size_mb, 17);
  options.set("bisect", "-1");
  EXPECT_EQ(options.bisect, -1);
  options.set("cpu", "haswell");
  EXPECT_EQ(options.cpu, "haswell");
}

TEST(Options, WrongValuesAreErrors) {
  EXPECT_EQ(fault_of("strict", "maybe"), "option strict: expected 0 or 1, found 'maybe'");
  for (const char* text : {"", "12x", "1.5", "99999999999999999999", " 1"})
    EXPECT_THAT(fault_of("cache_size_mb", text),
                HasSubstr("option cache_size_mb: expected an integer"))
        << text;
}

TEST(Options, UnknownNamesGetTheNearest) {
  EXPECT_EQ(fault_of("strickt", "1"), "unknown option strickt; nearest: strict");
  EXPECT_EQ(fault_of("cache_size", "1"), "unknown option cache_size; nearest: cache_size_mb");
  EXPECT_THAT(fault_of("", "1"), HasSubstr("unknown option"));
}

TEST(Options, OnlyCodeOptionsStandInTheFingerprint) {
  const Options defaults;
  for (const OptionRow& row : option_table()) {
    Options changed;
    changed.set(row.name, row.type == "bool" ? (row.default_text == "1" ? "0" : "1") : "7");
    const bool differs = changed.code_fingerprint() != defaults.code_fingerprint();
    EXPECT_EQ(differs, row.option_class == OptionClass::code) << row.name;
    EXPECT_NE(changed, defaults) << row.name;
  }
  EXPECT_THAT(defaults.code_fingerprint(), HasSubstr("cpu=\n"));
}

TEST(Options, TheTableHoldsTheDefaults) {
  std::set<std::string_view> names, envs;
  Options options;
  for (const OptionRow& row : option_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(envs.insert(row.env).second) << row.env;
    EXPECT_THAT(std::string(row.env), HasSubstr("MLCC_"));
    EXPECT_THAT(std::string(row.help), Not(::testing::IsEmpty()));
    options.set(row.name, row.default_text);
  }
  EXPECT_EQ(options, Options());
}

// Sets an environment variable for the length of a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* before = ::getenv(name);
    had_value_ = before != nullptr;
    if (had_value_) before_ = before;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Environment() { had_value_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  bool had_value_;
  std::string before_;
};

TEST(Options, ComeFromTheEnvironment) {
  const Environment strict("MLCC_STRICT", "1");
  const Environment threads("MLCC_NUM_COMPILE_THREADS", "3");
  const Environment size("MLCC_CACHE_SIZE_MB", "");
  const Options options = options_from_environment();
  EXPECT_TRUE(options.strict);
  EXPECT_EQ(options.num_compile_threads, 3);
  EXPECT_EQ(options.cache_size_mb, Options().cache_size_mb);
  const Environment wrong("MLCC_NUM_COMPILE_THREADS", "many");
  EXPECT_THROW(options_from_environment(), Error);
}

TEST(Options, TheCacheFolder) {
  Options options;
  options.cache_dir = "/tmp/chosen";
  EXPECT_EQ(options.cache_directory(), "/tmp/chosen");
  options.cache_dir.clear();
  {
    const Environment xdg("XDG_CACHE_HOME", "/xdg");
    EXPECT_EQ(options.cache_directory(), "/xdg/mlcc");
  }
  const Environment xdg("XDG_CACHE_HOME", nullptr);
  {
    const Environment home("HOME", "/home/someone");
    EXPECT_EQ(options.cache_directory(), "/home/someone/.cache/mlcc");
    options.cache_dir = "~/cache";
    EXPECT_EQ(options.cache_directory(), "/home/someone/cache");
    options.cache_dir.clear();
  }
  const Environment home("HOME", nullptr);
  EXPECT_EQ(options.cache_directory(), "");
}

}  // namespace
}  // namespace mlcc::driver
