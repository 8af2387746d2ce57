// From the axes of a fusion group's domain to the axes of a loop nest: splits those that accesses
// divide, merges those that all accesses walk through as one.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "types/symbolic.h"

namespace mlcc::lower {

class NestAxes {
 public:
  // `domain[d]` is the extent of axis fusion::axis_name(d); `expressions` are all index expressions
  // over these axes. `facts` holds what is known about sizes.
  NestAxes(const std::vector<SymExpr>& domain, const std::vector<bool>& reduced,
           std::vector<SymExpr> expressions, const Assumptions& facts);

  const std::vector<schedule::Axis>& axes() const { return axes_; }
  // Rewrites an expression over the domain's axes into one over the nest's axes.
  SymExpr map(SymExpr expression) const;
  const Assumptions& assumptions() const { return assumptions_; }  // sizes and the nest's axes

 private:
  struct Split {
    std::string axis, high, low;  // axis = high * divisor + low
    SymExpr divisor;
  };
  struct Merge {
    std::string outer, inner, merged;  // merged = outer * inner_extent + inner
    SymExpr inner_extent;
  };

  bool split_once();
  bool merge_once();
  bool can_merge(const schedule::Axis& outer, const schedule::Axis& inner) const;
  SymExpr apply_split(const SymExpr& e, const Split& split) const;
  static SymExpr apply_merge(const SymExpr& e, const Merge& merge);

  std::vector<schedule::Axis> axes_;
  std::vector<SymExpr> expressions_;
  std::vector<std::string> dropped_;  // axes of extent 1
  std::vector<Split> splits_;
  std::vector<Merge> merges_;
  Assumptions assumptions_;
};

}  // namespace mlcc::lower
