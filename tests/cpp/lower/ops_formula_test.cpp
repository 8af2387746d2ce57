#include <gtest/gtest.h>

#include "graph/graph.h"
#include "loop/ir.h"
#include "lower/element/formula.h"

namespace mlcc::lower {
namespace {

using graph::DTypeRule;
using graph::OpInfo;

// 16-bit floats are computed in f32, except by rows that only move values.
bool is_computed_in(const OpInfo& info, DType dtype) {
  if (!graph::holds(info.domain, dtype)) return false;
  const bool is_narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  return !is_narrow || info.rule == DTypeRule::kSame || info.rule == DTypeRule::kSelect;
}

std::vector<loop::Expr> operands(loop::Arena& arena, const OpInfo& info, DType dtype) {
  std::vector<loop::Expr> result;
  for (int i = 0; i < info.arity; ++i) {
    const bool is_condition = info.rule == DTypeRule::kSelect && i == 0;
    result.push_back(
        loop::Variable::make(arena, is_condition ? DType::kBool : dtype, "x" + std::to_string(i)));
  }
  return result;
}

bool gives_bool(const OpInfo& info) {
  return info.rule == DTypeRule::kCompare || info.rule == DTypeRule::kLogical ||
         info.rule == DTypeRule::kTest;
}

void count_reads(loop::Expr e, loop::Expr variable, int& reads) {
  if (e == variable) ++reads;
  if (const auto* apply = loop::as<loop::Apply>(e))
    for (const loop::Expr arg : apply->args) count_reads(arg, variable, reads);
  if (const auto* cast = loop::as<loop::Cast>(e)) count_reads(cast->value, variable, reads);
}

TEST(OpsFormula, every_row_is_well_typed_over_its_whole_domain) {
  for (const OpInfo& info : graph::all_ops()) {
    if (info.arity < 0) continue;
    int dtypes = 0;
    for (int d = 0; d < kNumDTypes; ++d) {
      const auto dtype = static_cast<DType>(d);
      if (!is_computed_in(info, dtype)) continue;
      SCOPED_TRACE(std::string(info.text) + " in " + std::string(dtype_name(dtype)));
      ++dtypes;
      loop::Arena arena;
      const std::vector<loop::Expr> args = operands(arena, info, dtype);
      loop::Expr e = nullptr;
      ASSERT_NO_THROW(e = Formulas(arena).instantiate(info.op, dtype, args));
      EXPECT_EQ(e->dtype, gives_bool(info) ? DType::kBool : dtype);
      // An operand that is never read would be a slip in the row.
      for (const loop::Expr arg : args) {
        int reads = 0;
        count_reads(e, arg, reads);
        EXPECT_GT(reads, 0);
      }
    }
    EXPECT_GT(dtypes, 0) << info.text;
  }
}

}  // namespace
}  // namespace mlcc::lower
