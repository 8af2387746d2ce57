// Tokens for the parsers of both IRs.
//
//   identifier   f32  relu  aten.add.Tensor   letters, digits, '_'; dots between two of these
//   value        %x  %0  %acc.1               text is the name without '%'
//   global       @bias_relu                   text is the name without '@'
//   integer      512  0x7fc0                  never signed: '-' is punctuation (expect_integer)
//   float        1.5  2e-3  0x1.8p+3  inf nan never signed; text is kept, to be rounded to f32 once
//   string       "a\n\"b\"\x01"              escapes \n \t \r \\ \" \xHH; text is the content
//   punctuation  -> .. <= >= == != += ::      and every other printable character by itself
//
// `0..512` is 0, .., 512 and `%n..%m` is %n, .., %m. Comments run from // to the end of the line.
// All errors are mlcc::Error with "line:col: message"; lines and columns (bytes) begin at 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/error.h"

namespace mlcc {

enum class TokenKind : uint8_t {
  kEnd,
  kIdentifier,
  kValue,
  kGlobal,
  kInteger,
  kFloat,
  kString,
  kPunctuation
};

struct Token {
  TokenKind kind;
  std::string text;      // without '%', '@' or quotes
  uint64_t integer = 0;  // of an integer
  double floating = 0;   // of a float; of an integer its nearest double
  int line = 1;
  int column = 1;
  size_t begin = 0;  // byte range in the source
  size_t end = 0;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source);  // reads all tokens; Error on the first malformed one

  // The n-th token ahead, without consuming it. Past the end stays the kEnd token.
  const Token& peek(size_t n = 0) const;
  const Token& next();
  bool at_end() const { return peek().kind == TokenKind::kEnd; }

  // `text` names an identifier or a punctuation: is("for"), accept("->"). Strings, values and the
  // like never match.
  bool is(std::string_view text, size_t n = 0) const;
  bool is(TokenKind kind, size_t n = 0) const { return peek(n).kind == kind; }
  bool accept(std::string_view text);          // consumes the token if it is `text`
  const Token& expect(std::string_view text);  // Error "expected 'text', found ..."

  // Consume a token of this kind or throw; `what` replaces the kind's name in the message ("a
  // dtype").
  std::string expect_identifier(std::string_view what = {});
  std::string expect_value(std::string_view what = {});
  std::string expect_global(std::string_view what = {});
  std::string expect_string(std::string_view what = {});
  int64_t expect_integer(std::string_view what = {});  // with an optional '-'; Error outside int64
  double
  expect_float(std::string_view what = {});  // with an optional '-'; integers are accepted too

  // Backtracking: rewind(position()) is cheap.
  size_t position() const { return position_; }
  void rewind(size_t position) { position_ = position; }

  // Throws Error "line:col: message" at the token ahead, or at a token consumed earlier.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(peek(), parts...);
  }
  template <typename... Parts>
  [[noreturn]] static void fail_at(const Token& token, const Parts&... parts) {
    throw Error(detail::join(token.line, ":", token.column, ": ", parts...));
  }
  // The token as messages name it: "'for'", "'%x'", "end of text".
  static std::string describe(const Token& token);

 private:
  const Token& expect_kind(TokenKind kind, std::string_view what);

  std::vector<Token> tokens_;  // ends with kEnd
  size_t position_ = 0;
};

// The string literal that lexes to `text`, with quotes.
std::string quote(std::string_view text);

}  // namespace mlcc
