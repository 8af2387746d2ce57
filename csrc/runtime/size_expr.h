// A SymExpr translated once, so that a call evaluates it over a vector of symbol values without any
// look-up.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "types/symbolic.h"

namespace mlcc::runtime {

class SizeExpr {
 public:
  // `index_of` gives a symbol's place in the vector that evaluate() receives.
  SizeExpr(const SymExpr& expr, const std::function<int32_t(std::string_view)>& index_of);

  // Throws Error on a divisor that is not positive and on overflow.
  int64_t evaluate(std::span<const int64_t> symbols) const;

  // The numbers of the kinds stand in files.
  enum class Kind : uint8_t { kConstant, kSymbol, kAdd, kMultiply, kFloorDiv, kMod, kMin, kMax };
  static constexpr uint8_t kNumKinds = 8;
  struct Instruction {
    Kind kind;
    int64_t operand;  // the constant, or the index of the symbol
  };
  using Code = std::vector<Instruction>;
  const Code& code() const { return code_; }  // postfix
  // The expression that code computes. Error where it computes none.
  static SymExpr expression_of(const Code& code,
                               const std::function<std::string_view(int64_t)>& name_of);

 private:
  static Code binary(Kind kind, Code a, const Code& b);
  static SymExpr combine(Kind kind, const SymExpr& a, const SymExpr& b);
  static int64_t apply(Kind kind, int64_t a, int64_t b);
  int64_t run(std::span<const int64_t> symbols, int64_t* stack) const;

  Code code_;  // postfix
  size_t depth_ = 0;
};

}  // namespace mlcc::runtime
