#include "lower/element/formula.h"

#include <algorithm>
#include <cctype>

#include "loop/cost.h"
#include "loop/text.h"
#include "lower/element/philox.h"
#include "support/error.h"

namespace mlcc::lower {

using loop::Apply;
using loop::Cast;
using loop::Expr;
using loop::ExprKind;
using loop::Variable;

namespace {

// Variables of an arena are typed, hence a name for each dtype: %a.f32.
std::string operand_name(size_t i, DType dtype) {
  return detail::join(static_cast<char>('a' + i), ".", dtype_name(dtype));
}

// The formula with its operands a, b, c written as variables.
std::string with_variables(std::string_view formula, const std::vector<DType>& dtypes) {
  const auto is_word = [&](size_t i) {
    return i < formula.size() && (std::isalnum(static_cast<unsigned char>(formula[i])) ||
                                  formula[i] == '_' || formula[i] == '.');
  };
  std::string text;
  for (size_t i = 0; i < formula.size(); ++i) {
    const size_t operand = static_cast<size_t>(formula[i] - 'a');
    const bool alone = !is_word(i + 1) && (i == 0 || !is_word(i - 1));
    if (alone && formula[i] >= 'a' && operand < dtypes.size())
      text += "%" + operand_name(operand, dtypes[operand]);
    else
      text += formula[i];
  }
  return text;
}

// Formulas hold no loads, so only three kinds need a rewrite.
Expr substitute(loop::Arena& arena, Expr e,
                const std::vector<std::pair<Expr, Expr>>& replacements) {
  switch (e->kind) {
  case ExprKind::kConstant: return e;
  case ExprKind::kVariable:
    for (const auto& [from, to] : replacements)
      if (from == e) return to;
    return e;
  case ExprKind::kApply: {
    const Apply* node = loop::as<Apply>(e);
    std::vector<Expr> args;
    for (const Expr arg : node->args) args.push_back(substitute(arena, arg, replacements));
    return Apply::make(arena, node->op, std::move(args));
  }
  case ExprKind::kCast:
    return Cast::make(arena, e->dtype, substitute(arena, loop::as<Cast>(e)->value, replacements));
  case ExprKind::kLoad: break;
  }
  MLCC_UNREACHABLE("a scalar formula holds a load");
}

// The operand whose dtype an op is computed in: of `where` the second one.
std::vector<DType> operand_dtypes(const graph::OpInfo& info, DType dtype) {
  std::vector<DType> dtypes(static_cast<size_t>(info.arity), dtype);
  if (info.rule == graph::DTypeRule::kSelect) dtypes[0] = DType::kBool;
  if (info.rule == graph::DTypeRule::kLogical) dtypes.assign(dtypes.size(), DType::kBool);
  return dtypes;
}

}  // namespace

Expr Formulas::instantiate(graph::Op op, DType dtype, const std::vector<Expr>& args) {
  const graph::OpInfo& info = graph::op_info(op);
  const std::vector<DType> dtypes = operand_dtypes(info, dtype);
  std::vector<const Variable*> variables;
  for (size_t i = 0; i < dtypes.size(); ++i)
    variables.push_back(Variable::make(arena_, dtypes[i], operand_name(i, dtypes[i])));
  Expr& formula = parsed_[{op, dtype}];
  if (formula == nullptr)
    formula = loop::parse_expr(arena_, with_variables(info.formula, dtypes), variables, dtype);
  std::vector<std::pair<Expr, Expr>> replacements;
  for (size_t i = 0; i < variables.size(); ++i) replacements.emplace_back(variables[i], args[i]);
  return substitute(arena_, formula, replacements);
}

int64_t Formulas::cost(const graph::Node& node) {
  if (node.op() == graph::Op::kCast) return 1;
  if (node.op() == graph::Op::kPhilox) return kPhiloxOps;
  std::vector<Expr> args;
  for (const graph::Value* operand : node.operands())
    args.push_back(Variable::make(arena_, operand->type().dtype, arena_.fresh_name("cost")));
  const bool is_select = graph::op_info(node.op()).rule == graph::DTypeRule::kSelect;
  return loop::ops_of(instantiate(node.op(), args[is_select ? 1 : 0]->dtype, args));
}

}  // namespace mlcc::lower
