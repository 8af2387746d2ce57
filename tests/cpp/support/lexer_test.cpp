#include "support/lexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace mlcc {
namespace {

using ::testing::ElementsAre;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string lexing_error(std::string_view text) {
  return message_of([&] { Lexer lexer(text); });
}

std::vector<std::string> texts(std::string_view source) {
  std::vector<std::string> found;
  for (Lexer lexer(source); !lexer.at_end();) found.push_back(lexer.next().text);
  return found;
}

std::vector<TokenKind> kinds(std::string_view source) {
  std::vector<TokenKind> found;
  for (Lexer lexer(source); !lexer.at_end();) found.push_back(lexer.next().kind);
  return found;
}

TEST(Lexer, tells_the_kinds_apart) {
  EXPECT_THAT(kinds("f32 %x @f 12 1.5 \"s\" ["),
              ElementsAre(TokenKind::kIdentifier, TokenKind::kValue, TokenKind::kGlobal,
                          TokenKind::kInteger, TokenKind::kFloat, TokenKind::kString,
                          TokenKind::kPunctuation));
  EXPECT_THAT(texts("f32 %x @f_1 12 1.5 \"s\" ["),
              ElementsAre("f32", "x", "f_1", "12", "1.5", "s", "["));
}

TEST(Lexer, names_hold_dots_between_words_only) {
  EXPECT_THAT(texts("aten.add.Tensor %acc.1 %0 @m.f"),
              ElementsAre("aten.add.Tensor", "acc.1", "0", "m.f"));
  EXPECT_THAT(texts("%n..%m a. b"), ElementsAre("n", "..", "m", "a", ".", "b"));
}

TEST(Lexer, ranges_are_no_floats) {
  EXPECT_THAT(texts("0..512 0..%s0 1.5..2"),
              ElementsAre("0", "..", "512", "0", "..", "s0", "1.5", "..", "2"));
}

TEST(Lexer, punctuation_takes_the_longest_match) {
  EXPECT_THAT(texts("->-<=<>==!=+=+::a:{}"), ElementsAre("->", "-", "<=", "<", ">=", "=", "!=",
                                                         "+=", "+", "::", "a", ":", "{", "}"));
}

TEST(Lexer, comments_and_blanks_are_skipped) {
  EXPECT_THAT(texts("a // b c\n\t d//\r\n//e"), ElementsAre("a", "d"));
  EXPECT_TRUE(Lexer("").at_end());
  EXPECT_TRUE(Lexer("  // only this").at_end());
}

TEST(Lexer, reads_integers) {
  Lexer lexer("7 -7 0x7fc0 9223372036854775807 -9223372036854775808 18446744073709551615");
  EXPECT_EQ(lexer.expect_integer(), 7);
  EXPECT_EQ(lexer.expect_integer(), -7);
  EXPECT_EQ(lexer.expect_integer(), 0x7fc0);
  EXPECT_EQ(lexer.expect_integer(), INT64_MAX);
  EXPECT_EQ(lexer.expect_integer(), INT64_MIN);
  EXPECT_EQ(lexer.next().integer, UINT64_MAX);
}

TEST(Lexer, reads_floats) {
  Lexer lexer("1.5 -2e-3 0x1.8p+3 0x1p-1074 inf -inf nan 3 1E4");
  EXPECT_EQ(lexer.expect_float(), 1.5);
  EXPECT_EQ(lexer.expect_float(), -2e-3);
  EXPECT_EQ(lexer.expect_float(), 12.0);
  EXPECT_EQ(lexer.expect_float(), std::ldexp(1.0, -1074));
  EXPECT_EQ(lexer.expect_float(), INFINITY);
  EXPECT_EQ(lexer.expect_float(), -INFINITY);
  EXPECT_TRUE(std::isnan(lexer.expect_float()));
  EXPECT_EQ(lexer.expect_float(), 3.0);
  EXPECT_EQ(lexer.expect_float(), 1e4);
}

TEST(Lexer, reads_every_double_that_printf_writes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    uint64_t bits = random() & ~(uint64_t{1} << 63);
    double value;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    for (const char* format : {"%.17e", "%a"}) {
      char text[64];
      std::snprintf(text, sizeof text, format, value);
      Lexer lexer(text);
      EXPECT_EQ(lexer.expect_float(), value) << text;
      EXPECT_TRUE(lexer.at_end()) << text;
    }
  }
}

TEST(Lexer, names_that_begin_like_numbers_words) {
  EXPECT_THAT(texts("infinity nano inf_ e5"), ElementsAre("infinity", "nano", "inf_", "e5"));
  EXPECT_EQ(Lexer("infinity").peek().kind, TokenKind::kIdentifier);
  EXPECT_EQ(Lexer("%inf").peek().kind, TokenKind::kValue);
}

TEST(Lexer, strings_keep_every_byte) {
  Lexer lexer(R"("a\n\t\r\\\"\x01\xff//%")");
  EXPECT_EQ(lexer.expect_string(), "a\n\t\r\\\"\x01\xff//%");
}

TEST(Lexer, quote_is_read_back) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  for (const std::string& text : {all, std::string(), std::string("f32 \"x\" \\n")}) {
    Lexer lexer(quote(text));
    EXPECT_EQ(lexer.expect_string(), text);
    EXPECT_TRUE(lexer.at_end());
  }
}

TEST(Lexer, tokens_know_their_place) {
  const std::string source = "graph @f\n  // note\n  %x -> y";
  Lexer lexer(source);
  lexer.next();
  const Token& name = lexer.next();
  EXPECT_EQ(name.line, 1);
  EXPECT_EQ(name.column, 7);
  EXPECT_EQ(source.substr(name.begin, name.end - name.begin), "@f");
  const Token& value = lexer.next();
  EXPECT_EQ(value.line, 3);
  EXPECT_EQ(value.column, 3);
  lexer.next();
  lexer.next();
  EXPECT_EQ(lexer.peek().line, 3);
  EXPECT_EQ(lexer.peek().column, 10);
}

TEST(Lexer, peeks_accepts_and_rewinds) {
  Lexer lexer("for %i in");
  EXPECT_TRUE(lexer.is("for"));
  EXPECT_TRUE(lexer.is(TokenKind::kValue, 1));
  EXPECT_TRUE(lexer.is("in", 2));
  EXPECT_EQ(lexer.peek(3).kind, TokenKind::kEnd);
  EXPECT_EQ(lexer.peek(99).kind, TokenKind::kEnd);
  EXPECT_FALSE(lexer.accept("in"));
  EXPECT_TRUE(lexer.accept("for"));
  const size_t here = lexer.position();
  EXPECT_EQ(lexer.expect_value(), "i");
  lexer.expect("in");
  EXPECT_TRUE(lexer.at_end());
  EXPECT_EQ(lexer.next().kind, TokenKind::kEnd);
  EXPECT_EQ(lexer.next().kind, TokenKind::kEnd);
  lexer.rewind(here);
  EXPECT_EQ(lexer.peek().text, "i");
}

TEST(Lexer, literals_never_match_as_words) {
  Lexer lexer("\"for\" %for @for");
  while (!lexer.at_end()) {
    EXPECT_FALSE(lexer.accept("for"));
    lexer.next();
  }
}

TEST(Lexer, errors_name_line_column_and_token) {
  EXPECT_EQ(message_of([] {
              Lexer lexer("a\n %x");
              lexer.next();
              lexer.expect("->");
            }),
            "2:2: expected '->', found '%x'");
  EXPECT_EQ(message_of([] { Lexer("12").expect_identifier("a dtype"); }),
            "1:1: expected a dtype, found '12'");
  EXPECT_EQ(message_of([] { Lexer("").expect_value(); }),
            "1:1: expected a value (%name), found end of text");
  EXPECT_EQ(message_of([] { Lexer("\"a\"").expect_global(); }),
            "1:1: expected a name (@name), found \"a\"");
  EXPECT_EQ(message_of([] { Lexer("-x").expect_integer(); }),
            "1:2: expected an integer, found 'x'");
  EXPECT_EQ(message_of([] { Lexer("9223372036854775808").expect_integer(); }),
            "1:1: integer 9223372036854775808 does not fit into 64 bits");
  EXPECT_EQ(message_of([] { Lexer("x").fail("axis ", 3, " twice"); }), "1:1: axis 3 twice");
}

TEST(Lexer, malformed_tokens_are_errors) {
  EXPECT_EQ(lexing_error("a 12ab"), "1:3: malformed number '12ab'");
  EXPECT_EQ(lexing_error("0x"), "1:1: malformed number '0x'");
  EXPECT_EQ(lexing_error("1.5f"), "1:1: malformed number '1.5f'");
  EXPECT_EQ(lexing_error("99999999999999999999"),
            "1:1: number '99999999999999999999' is out of range");
  EXPECT_EQ(lexing_error("\n \"abc\n\""), "2:2: string is not closed");
  EXPECT_EQ(lexing_error("\"abc\\"),
            "1:5: unknown escape in a string; known are \\n \\t \\r \\\\ \\\" \\xHH");
  EXPECT_EQ(lexing_error("\"\\q\""),
            "1:2: unknown escape in a string; known are \\n \\t \\r \\\\ \\\" \\xHH");
  EXPECT_EQ(lexing_error("a \x01"), "1:3: unexpected byte 1");
  EXPECT_EQ(lexing_error("\xc3\xa4"), "1:1: unexpected byte 195");
}

TEST(Lexer, survives_random_bytes) {
  std::mt19937 random(2);
  const std::string alphabet = "ax0.%@\"\\-+>=<:/ \n\te5p\x01\xff[]()";
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += alphabet[random() % alphabet.size()];
    try {
      for (Lexer lexer(text); !lexer.at_end();) {
        const Token& token = lexer.next();
        ASSERT_LT(token.begin, token.end);
        ASSERT_LE(token.end, text.size());
      }
    } catch (const Error&) {
      // The text was malformed, which is most often so.
    }
  }
}

}  // namespace
}  // namespace mlcc
