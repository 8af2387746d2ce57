#include "kernel_scan.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

namespace mlcc_emulator {
namespace {

// Words, single punctuation marks and string literals.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) { advance(); }

  bool at_end() const { return token_.empty(); }
  std::string_view token() const { return token_; }

  void advance() {
    skip_space();
    const size_t begin = at_;
    if (at_ == text_.size()) {
      token_ = {};
      return;
    }
    if (is_word(text_[at_])) {
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    } else if (text_[at_] == '"' || text_[at_] == '\'') {
      skip_literal(text_[at_]);
    } else {
      ++at_;
    }
    token_ = text_.substr(begin, at_ - begin);
  }

  // At "(": what stands up to the matching ")", which becomes the token.
  std::string_view in_parentheses() {
    const size_t begin = at_;
    int depth = 1;
    while (!at_end()) {
      advance();
      if (token_ == "(") ++depth;
      if (token_ == ")" && --depth == 0) break;
    }
    return at_end() ? std::string_view() : text_.substr(begin, at_ - 1 - begin);
  }

 private:
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  bool starts_with(std::string_view start) const { return text_.substr(at_).starts_with(start); }

  void skip_literal(char quote) {
    ++at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n')
      at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
  }

  void skip_line() {
    while (at_ < text_.size() && text_[at_] != '\n') at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_, text_.size());
  }

  // White space, comments and preprocessor lines.
  void skip_space() {
    bool line_begins = at_ == 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (starts_with("//") || (c == '#' && line_begins)) {
        skip_line();
      } else if (starts_with("/*")) {
        const size_t end = text_.find("*/", at_);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else if (std::isspace(static_cast<unsigned char>(c))) {
        line_begins |= c == '\n';
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view text_, token_;
  size_t at_ = 0;
};

class KernelScan {
 public:
  explicit KernelScan(std::string_view text) : scan_(text) {}

  std::vector<ScannedKernel> run() {
    for (; !scan_.at_end(); scan_.advance()) {
      const std::string_view token = scan_.token();
      if (token == ";" || token == "}") {
        if (token == "}" && !blocks_.empty()) blocks_.pop_back();
        start_declaration();
      } else if (token == "{") {
        // Only the block of a linkage is transparent; kernels elsewhere are not ours to find.
        blocks_.push_back(last_is_linkage_);
        start_declaration();
      } else if (token == "MLCC_KERNEL") {
        read_macro();
      } else {
        read_word(token);
      }
    }
    return std::move(found_);
  }

 private:
  void start_declaration() {
    is_extern_ = is_c_ = is_global_ = is_template_ = last_is_linkage_ = false;
    bounds_ = {};
    previous_ = {};
  }

  bool is_outside() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](bool linkage) { return linkage; });
  }

  void read_word(std::string_view token) {
    if (token == "extern") is_extern_ = true;
    if (token == "template") is_template_ = true;
    if (token == "__global__") is_global_ = true;
    last_is_linkage_ = is_extern_ && token == "\"C\"";
    is_c_ |= last_is_linkage_;
    if (token == "__launch_bounds__") {
      scan_.advance();
      bounds_ = scan_.in_parentheses();
    } else if (token == "__attribute__" || token == "__align__" || token == "alignas") {
      scan_.advance();
      scan_.in_parentheses();
    } else if (token == "(") {
      if (is_global_ && !is_template_ && (is_c_ || !blocks_.empty()) && is_outside())
        add(previous_, bounds_);
      scan_.in_parentheses();
      is_global_ = false;
    }
    previous_ = token;
  }

  // MLCC_KERNEL(name, threads)
  void read_macro() {
    scan_.advance();
    const std::string_view arguments = scan_.in_parentheses();
    const size_t comma = arguments.find(',');
    std::string_view name = arguments.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    add(name, comma == std::string_view::npos ? std::string_view() : arguments.substr(comma + 1));
  }

  void add(std::string_view name, std::string_view bounds) {
    if (name.empty()) return;
    const auto same = [&](const ScannedKernel& kernel) { return kernel.name == name; };
    if (std::any_of(found_.begin(), found_.end(), same)) return;
    found_.push_back({std::string(name), std::string(bounds)});
  }

  Scanner scan_;
  std::vector<ScannedKernel> found_;
  std::vector<bool> blocks_;  // that are open: whether of a linkage
  // Of the declaration that is being read
  bool is_extern_ = false, is_c_ = false, is_global_ = false, is_template_ = false;
  bool last_is_linkage_ = false;
  std::string_view bounds_, previous_;
};

}  // namespace

std::vector<ScannedKernel> scan_kernels(std::string_view text) { return KernelScan(text).run(); }

}  // namespace mlcc_emulator
