#include "support/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "support/result.h"

namespace mlcc {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Error, user_check_throws_error_with_the_joined_parts) {
  EXPECT_THROW(MLCC_USER_CHECK(false, "x"), Error);
  EXPECT_EQ(message_of([] { MLCC_USER_CHECK(1 > 2, "matmul %", 4, ": found ", 'c'); }),
            "matmul %4: found c");
}

TEST(Error, check_throws_internal_error_with_file_and_line) {
  EXPECT_THROW(MLCC_CHECK(false, "x"), InternalError);
  EXPECT_THROW(MLCC_UNREACHABLE("x"), InternalError);
  const std::string message = message_of([] { MLCC_CHECK(false, "value ", 3); });
  EXPECT_THAT(message, StartsWith("value 3 ["));
  EXPECT_THAT(message, HasSubstr("error_test.cpp:"));
}

TEST(Error, the_two_kinds_are_not_mixed) {
  EXPECT_FALSE((std::is_base_of_v<Error, InternalError>));
  EXPECT_FALSE((std::is_base_of_v<InternalError, Error>));
}

TEST(Error, parts_are_evaluated_only_on_failure) {
  int calls = 0;
  const auto count = [&] { return ++calls; };
  MLCC_CHECK(true, count());
  MLCC_USER_CHECK(true, count());
  EXPECT_EQ(calls, 0);
  EXPECT_THROW(MLCC_CHECK(false, count()), InternalError);
  EXPECT_EQ(calls, 1);
}

TEST(Error, checks_are_single_statements) {
  // Would not compile if the macro were several statements.
  if (false)
    MLCC_CHECK(false, "not reached");
  else
    SUCCEED();
}

TEST(Result, holds_a_value) {
  const Result<int> result = 5;
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 5);
  EXPECT_EQ(result.value(), 5);
}

TEST(Result, holds_a_reason) {
  const Result<std::string> result = unsupported("stride of dim ", 1, " is unknown");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.reason(), "stride of dim 1 is unknown");
  EXPECT_THROW(result.value(), InternalError);
}

TEST(Result, moves_its_value_out) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 7);
}

}  // namespace
}  // namespace mlcc
