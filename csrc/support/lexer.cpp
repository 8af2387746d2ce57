#include "support/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace mlcc {
namespace {

// <cctype> depends on the locale; IR text does not.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_digit(c) || is_letter(c); }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr std::array<std::string_view, 8> kLongPunctuation = {
    "->", "..", "<=", ">=", "==", "!=", "+=", "::"};

class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  Token scan() {
    skip_blanks();
    Token token{TokenKind::kEnd, {}, 0, 0, line_, column(), offset_, offset_};
    if (offset_ < source_.size()) scan_into(token);
    token.end = offset_;
    return token;
  }

 private:
  char at(size_t ahead = 0) const {
    return offset_ + ahead < source_.size() ? source_[offset_ + ahead] : '\0';
  }
  int column() const { return static_cast<int>(offset_ - line_begin_) + 1; }

  void skip_blanks() {
    while (offset_ < source_.size()) {
      const char c = at();
      if (c == '\n') {
        ++offset_;
        ++line_;
        line_begin_ = offset_;
      } else if (c == ' ' || c == '\t' || c == '\r') {
        ++offset_;
      } else if (c == '/' && at(1) == '/') {
        offset_ = std::min(source_.find('\n', offset_), source_.size());
      } else {
        return;
      }
    }
  }

  void scan_into(Token& token) {
    const char c = at();
    if (is_letter(c)) {
      token.text = scan_name();
      token.kind = TokenKind::kIdentifier;
      if (token.text == "inf" || token.text == "nan") scan_non_finite(token);
    } else if (is_digit(c)) {
      scan_number(token);
    } else if (c == '"') {
      scan_string(token);
    } else if ((c == '%' || c == '@') && is_word(at(1))) {
      ++offset_;
      token.kind = c == '%' ? TokenKind::kValue : TokenKind::kGlobal;
      token.text = scan_name();
    } else {
      scan_punctuation(token);
    }
  }

  std::string scan_name() {
    const size_t begin = offset_;
    while (is_word(at()) || (at() == '.' && is_word(at(1)))) ++offset_;
    return std::string(source_.substr(begin, offset_ - begin));
  }

  static void scan_non_finite(Token& token) {
    using Limits = std::numeric_limits<double>;
    token.kind = TokenKind::kFloat;
    token.floating = token.text == "inf" ? Limits::infinity() : Limits::quiet_NaN();
  }

  template <typename Predicate>
  size_t skip_while(Predicate predicate) {
    const size_t begin = offset_;
    while (predicate(at())) ++offset_;
    return offset_ - begin;
  }

  // Consumes an exponent if one is here.
  bool skip_exponent(char lower, char upper) {
    if (at() != lower && at() != upper) return false;
    const size_t sign = at(1) == '+' || at(1) == '-' ? 1 : 0;
    if (!is_digit(at(1 + sign))) return false;
    offset_ += 1 + sign;
    skip_while(is_digit);
    return true;
  }

  void scan_number(Token& token) {
    const size_t begin = offset_;
    const bool is_hex = at() == '0' && (at(1) == 'x' || at(1) == 'X');
    if (is_hex) offset_ += 2;
    const auto is_part = [&](char c) { return is_hex ? hex_digit(c) >= 0 : is_digit(c); };
    const size_t digits = skip_while(is_part);
    bool is_float = false;
    // Not `0..512`: there the dot belongs to the range.
    if (at() == '.' && is_part(at(1))) {
      ++offset_;
      skip_while(is_part);
      is_float = true;
    }
    is_float |= is_hex ? skip_exponent('p', 'P') : skip_exponent('e', 'E');
    const bool is_whole_word = !is_word(at());
    if (!is_whole_word) skip_while(is_word);
    token.text = std::string(source_.substr(begin, offset_ - begin));
    if (digits == 0 || !is_whole_word) Lexer::fail_at(token, "malformed number '", token.text, "'");
    convert_number(token, is_hex, is_float);
  }

  static void convert_number(Token& token, bool is_hex, bool is_float) {
    const char* first = token.text.data() + (is_hex ? 2 : 0);
    const char* last = token.text.data() + token.text.size();
    token.kind = is_float ? TokenKind::kFloat : TokenKind::kInteger;
    std::from_chars_result result{};
    if (is_float) {
      result = std::from_chars(first, last, token.floating,
                               is_hex ? std::chars_format::hex : std::chars_format::general);
    } else {
      result = std::from_chars(first, last, token.integer, is_hex ? 16 : 10);
      token.floating = static_cast<double>(token.integer);
    }
    if (result.ec != std::errc{} || result.ptr != last)
      Lexer::fail_at(token, "number '", token.text, "' is out of range");
  }

  void scan_string(Token& token) {
    token.kind = TokenKind::kString;
    for (++offset_; at() != '"';) {
      if (offset_ >= source_.size() || at() == '\n') Lexer::fail_at(token, "string is not closed");
      token.text += at() == '\\' ? scan_escape() : source_[offset_++];
    }
    ++offset_;
  }

  char scan_escape() {
    const char c = at(1);
    size_t length = 2;
    char value = c;
    if (c == 'n') {
      value = '\n';
    } else if (c == 't') {
      value = '\t';
    } else if (c == 'r') {
      value = '\r';
    } else if (c == 'x' && hex_digit(at(2)) >= 0 && hex_digit(at(3)) >= 0) {
      value = static_cast<char>(hex_digit(at(2)) * 16 + hex_digit(at(3)));
      length = 4;
    } else if (c != '"' && c != '\\') {
      const Token here{TokenKind::kEnd, {}, 0, 0, line_, column(), offset_, offset_};
      Lexer::fail_at(here, "unknown escape in a string; known are \\n \\t \\r \\\\ \\\" \\xHH");
    }
    offset_ += length;
    return value;
  }

  void scan_punctuation(Token& token) {
    token.kind = TokenKind::kPunctuation;
    const std::string_view rest = source_.substr(offset_);
    size_t length = 1;
    for (std::string_view text : kLongPunctuation)
      if (rest.starts_with(text)) length = text.size();
    token.text = std::string(rest.substr(0, length));
    const auto code = static_cast<unsigned char>(rest[0]);
    if (code <= ' ' || code >= 0x7f) Lexer::fail_at(token, "unexpected byte ", int{code});
    offset_ += length;
  }

  std::string_view source_;
  size_t offset_ = 0;
  size_t line_begin_ = 0;
  int line_ = 1;
};

std::string_view kind_name(TokenKind kind) {
  switch (kind) {
  case TokenKind::kEnd: return "end of text";
  case TokenKind::kIdentifier: return "an identifier";
  case TokenKind::kValue: return "a value (%name)";
  case TokenKind::kGlobal: return "a name (@name)";
  case TokenKind::kInteger: return "an integer";
  case TokenKind::kFloat: return "a number";
  case TokenKind::kString: return "a string";
  case TokenKind::kPunctuation: return "punctuation";
  }
  MLCC_UNREACHABLE("token kind ", static_cast<int>(kind));
}

}  // namespace

Lexer::Lexer(std::string_view source) {
  Scanner scanner(source);
  do tokens_.push_back(scanner.scan());
  while (tokens_.back().kind != TokenKind::kEnd);
}

const Token& Lexer::peek(size_t n) const {
  return n < tokens_.size() - position_ ? tokens_[position_ + n] : tokens_.back();
}

const Token& Lexer::next() {
  const Token& token = peek();
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}

bool Lexer::is(std::string_view text, size_t n) const {
  const Token& token = peek(n);
  return (token.kind == TokenKind::kIdentifier || token.kind == TokenKind::kPunctuation) &&
         token.text == text;
}

bool Lexer::accept(std::string_view text) {
  if (!is(text)) return false;
  next();
  return true;
}

const Token& Lexer::expect(std::string_view text) {
  if (!is(text)) fail("expected '", text, "', found ", describe(peek()));
  return next();
}

const Token& Lexer::expect_kind(TokenKind kind, std::string_view what) {
  if (!is(kind))
    fail("expected ", what.empty() ? kind_name(kind) : what, ", found ", describe(peek()));
  return next();
}

std::string Lexer::expect_identifier(std::string_view what) {
  return expect_kind(TokenKind::kIdentifier, what).text;
}

std::string Lexer::expect_value(std::string_view what) {
  return expect_kind(TokenKind::kValue, what).text;
}

std::string Lexer::expect_global(std::string_view what) {
  return expect_kind(TokenKind::kGlobal, what).text;
}

std::string Lexer::expect_string(std::string_view what) {
  return expect_kind(TokenKind::kString, what).text;
}

int64_t Lexer::expect_integer(std::string_view what) {
  const bool is_negative = accept("-");
  const Token& token = expect_kind(TokenKind::kInteger, what);
  const uint64_t limit = uint64_t{INT64_MAX} + (is_negative ? 1 : 0);
  if (token.integer > limit)
    fail_at(token, "integer ", is_negative ? "-" : "", token.text, " does not fit into 64 bits");
  // Modulo 2^64, so that the lowest int64 needs no case of its own.
  return static_cast<int64_t>(is_negative ? 0 - token.integer : token.integer);
}

double Lexer::expect_float(std::string_view what) {
  const bool is_negative = accept("-");
  const Token& token = is(TokenKind::kInteger) ? next() : expect_kind(TokenKind::kFloat, what);
  return is_negative ? -token.floating : token.floating;
}

std::string Lexer::describe(const Token& token) {
  switch (token.kind) {
  case TokenKind::kEnd: return "end of text";
  case TokenKind::kValue: return "'%" + token.text + "'";
  case TokenKind::kGlobal: return "'@" + token.text + "'";
  case TokenKind::kString: return quote(token.text);
  case TokenKind::kIdentifier:
  case TokenKind::kInteger:
  case TokenKind::kFloat:
  case TokenKind::kPunctuation: return "'" + token.text + "'";
  }
  MLCC_UNREACHABLE("token kind ", static_cast<int>(token.kind));
}

std::string quote(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (code < ' ' || code == 0x7f) {
      quoted += "\\x";
      quoted += kDigits[code >> 4];
      quoted += kDigits[code & 15];
    } else {
      quoted += c;  // UTF-8 stays readable
    }
  }
  quoted += '"';
  return quoted;
}

}  // namespace mlcc
