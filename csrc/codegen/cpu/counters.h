// Quotients and remainders of a loop's variable, which are the indices of a place that the loop
// counts. They are counted along from one iteration to the next: a division takes as long as a row
// of two or three vectors.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "loop/ir.h"

namespace mlcc::codegen::cpu {

class Counters {
 public:
  // Of the variable, or of the quotient of another one, by what is the same in all iterations.
  struct Division {
    int of;  // index of the other one; -1: the variable
    loop::Expr divisor;
  };
  // A let that is one of the results.
  struct Use {
    int division;
    bool is_quotient;
  };

  explicit Counters(const loop::For& loop);

  // Those that others refer to come first.
  const std::vector<Division>& divisions() const { return divisions_; }
  // By the values of lets in the loop's body.
  const std::unordered_map<loop::Expr, Use>& uses() const { return uses_; }

 private:
  std::optional<Use> find_use(loop::Expr e);
  std::optional<int> divided(loop::Expr e);
  bool is_invariant(loop::Expr e) const;
  int division(int of, loop::Expr divisor);

  const loop::Variable* variable_;
  std::vector<Division> divisions_;
  std::vector<std::string> divisors_;  // as text
  std::unordered_map<loop::Expr, Use> uses_;
  std::unordered_map<const loop::Variable*, Use> lets_;
  std::set<const loop::Variable*> defined_;  // in the loop; membership only
};

}  // namespace mlcc::codegen::cpu
