#include "lower/scans_and_updates/scans.h"

#include <algorithm>
#include <limits>

#include "graph/combine.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/loops/nest.h"
#include "lower/loops/reduction.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Combine;
using graph::Node;
using graph::Op;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

// The reduction whose running value a scan is; of argmax and argmin the one that finds the extreme,
// of logaddexp the one that finds the scale.
Op reduction_of(Combine combine) {
  switch (combine) {
  case Combine::kAdd: return Op::kSum;
  case Combine::kMul: return Op::kProd;
  case Combine::kMax:
  case Combine::kLogAddExp:
  case Combine::kArgMax: return Op::kMax;
  case Combine::kMin:
  case Combine::kArgMin: return Op::kMin;
  case Combine::kSet:
  case Combine::kAnd:
  case Combine::kOr: break;
  }
  MLCC_UNREACHABLE("lowering: no combine of scans: ", static_cast<int>(combine));
}

DType carried_in(Combine combine, DType element) {
  const bool rounds = combine == Combine::kAdd || combine == Combine::kMul;
  return rounds && element == DType::kF32 ? DType::kF64 : carried_dtype(element);
}

class ScanLowering {
 public:
  ScanLowering(const Context& context, const Node& node, KernelBuffers& buffers,
               LoweredKernel& lowered)
      : context_(context), node_(node), buffers_(buffers), lowered_(lowered),
        combine_(*graph::parse_combine(node.attr<std::string>("combine"))),
        dim_(static_cast<size_t>(node.attr<int64_t>("dim"))),
        carried_(carried_in(combine_, node.operand(0)->type().dtype)),
        reducer_(context.arena, reduction_of(combine_), carried_),
        position_(fusion::axis_symbols(domain().size())) {}

  void lower() {
    const Recording recording = record(context_, domain(), [&](Evaluator& recorder, Block& block) {
      point(recorder, initial(), block);
    });
    std::vector<bool> scanned(domain().size());
    scanned[dim_] = true;
    const NestAxes axes(domain(), scanned, recording.indices, context_.graph.assumptions());
    schedule::NestFacts facts = facts_of(recording, axes);
    facts.order = schedule::ReducedOrder::kInside;
    // A product of later floats may overflow where the running one stays 0 or small.
    const bool may_regroup = combine_ != Combine::kMul || !is_float(carried_);
    facts.can_scan = may_regroup && !context_.machine.is_gpu && context_.machine.vector_bits > 0 &&
                     std::count_if(facts.axes.begin(), facts.axes.end(),
                                   [](const schedule::Axis& axis) { return axis.reduced; }) == 1;
    facts.widest_bytes = std::max(facts.widest_bytes, dtype_size(carried_));
    lowered_.schedule = context_.choose(facts);
    Evaluator evaluator(context_, buffers_, domain(), &axes, nullptr);
    Nest nest(context_, axes, lowered_.schedule, evaluator);
    add_phase(nest.build(1, lowered_.schedule.group,
                         [&](Block& row) {
                           evaluator.push(&row);
                           over_axis(evaluator, nest.pass_axes(), 0, initial(), row);
                           evaluator.pop();
                         }),
              lowered_);
  }

 private:
  const Index& domain() const { return node_.result()->type().shape; }
  bool is_place() const { return combine_ == Combine::kArgMax || combine_ == Combine::kArgMin; }

  // Of argmax and argmin: the extreme and its place. Of logaddexp: the largest element m and the
  // sum of exp(x - m), where an infinite m counts as 0.
  std::vector<Expr> initial() const {
    std::vector<Expr> values = reducer_.identity();
    if (is_place()) values.push_back(loop::int_constant(context_.arena, 0));
    if (combine_ == Combine::kLogAddExp)
      values.push_back(loop::Constant::make_float(context_.arena, DType::kF64, 0.0));
    return values;
  }

  std::vector<Expr> over_axis(Evaluator& evaluator, const std::vector<PassAxis>& axes, size_t i,
                              const std::vector<Expr>& values, Block& block) {
    if (i == axes.size()) return point(evaluator, values, block);
    loop::Arena& arena = context_.arena;
    const bool is_scan = axes[i].mode.kind == loop::LoopKind::kVector;
    std::vector<loop::Carried> carried;
    std::vector<Expr> inside, results;
    for (const Expr value : values) {
      carried.push_back({fresh(value->dtype), value, fresh(value->dtype)});
      inside.push_back(carried.back().variable);
      results.push_back(carried.back().result);
    }
    Block inner;
    std::vector<Expr> yields = over_axis(evaluator, axes, i + 1, inside, inner);
    loop::LoopMode mode = axes[i].mode;
    std::optional<loop::Combine> combine;
    if (is_scan) {
      mode.kind = loop::LoopKind::kScan;
      combine = combine_partials(evaluator);
    }
    block.push_back(loop::Reduce::make(arena, axes[i].variable, loop::int_constant(arena, 0),
                                       loop::from_symbolic(arena, axes[i].extent), mode,
                                       std::move(carried), std::move(inner), std::move(yields),
                                       std::move(combine)));
    return results;
  }

  const Variable* fresh(DType dtype) const {
    return Variable::make(context_.arena, dtype, context_.arena.fresh_name("sofar"));
  }

  // What two neighbouring parts of the axis carry, as one.
  loop::Combine combine_partials(Evaluator& evaluator) const {
    loop::Combine combine;
    std::vector<Expr> left, right;
    for (const Expr value : initial()) {
      combine.left.push_back(fresh(value->dtype));
      combine.right.push_back(fresh(value->dtype));
      left.push_back(combine.left.back());
      right.push_back(combine.right.back());
    }
    evaluator.push(&combine.body);
    combine.values = merge(evaluator, left, right);
    evaluator.pop();
    return combine;
  }

  std::vector<Expr> merge(Evaluator& evaluator, const std::vector<Expr>& left,
                          const std::vector<Expr>& right) const {
    if (combine_ == Combine::kLogAddExp) return merge_log_add_exp(evaluator, left, right);
    if (is_place()) return take_later(evaluator, left, right);
    return reducer_.merge(left, right);
  }

  // Takes in the current element and stores what that gives.
  std::vector<Expr> point(Evaluator& evaluator, const std::vector<Expr>& values, Block& block) {
    loop::Arena& arena = context_.arena;
    evaluator.push(&block);
    const Expr element = evaluator.evaluate(node_.operand(0), position_);
    std::vector<Expr> next =
        step(evaluator, values, evaluator.let(loop::Cast::make(arena, carried_, element), "x"));
    for (Expr& value : next) {
      const Variable* variable = fresh(value->dtype);
      block.push_back(loop::Let::make(arena, variable, value));
      value = variable;
    }
    const DType dtype = node_.result()->type().dtype;
    const Expr stored = combine_ == Combine::kLogAddExp ? log_of_sum(evaluator, next) : next.back();
    evaluator.store(node_.result(), position_, loop::Cast::make(arena, dtype, stored));
    evaluator.pop();
    return next;
  }

  std::vector<Expr> step(Evaluator& evaluator, const std::vector<Expr>& values, Expr element) {
    if (combine_ == Combine::kLogAddExp) return log_add_exp(evaluator, values, element);
    if (is_place())
      return take_later(evaluator, values, {element, evaluator.index_expr(position_[dim_])});
    return reducer_.merge(values, {element});
  }

  // The later one of equal extremes, and NaN.
  std::vector<Expr> take_later(Evaluator& evaluator, const std::vector<Expr>& values,
                               const std::vector<Expr>& later) const {
    loop::Arena& arena = context_.arena;
    const ScalarOp op = combine_ == Combine::kArgMax ? ScalarOp::kGe : ScalarOp::kLe;
    Expr takes = loop::apply(arena, op, {later[0], values[0]});
    if (is_float(carried_)) {
      const Expr is_nan = loop::apply(arena, ScalarOp::kIsNan, {later[0]});
      takes = loop::apply(arena, ScalarOp::kOr, {takes, is_nan});
    }
    takes = evaluator.let(takes, "takes");
    return {loop::apply(arena, ScalarOp::kSelect, {takes, later[0], values[0]}),
            loop::apply(arena, ScalarOp::kSelect, {takes, later[1], values[1]})};
  }

  Expr apply(ScalarOp op, std::vector<Expr> args) const {
    return loop::apply(context_.arena, op, std::move(args));
  }

  Expr scale(Evaluator& evaluator, Expr largest) const {
    const Expr infinite = apply(ScalarOp::kIsInf, {largest});
    const Expr zero = loop::Constant::make_float(context_.arena, carried_, 0.0);
    return evaluator.let(apply(ScalarOp::kSelect, {infinite, zero, largest}), "scale");
  }

  // Nothing rescales a sum of nothing: its scale, -inf, is too far from any other.
  std::vector<Expr> log_add_exp(Evaluator& evaluator, const std::vector<Expr>& values,
                                Expr element) const {
    const Expr largest = evaluator.let(apply(ScalarOp::kMax, {values[0], element}), "largest");
    const Expr after = scale(evaluator, largest);
    return {largest, apply(ScalarOp::kAdd, {rescaled(evaluator, values, after),
                                            exp_of_difference(element, after)})};
  }

  std::vector<Expr> merge_log_add_exp(Evaluator& evaluator, const std::vector<Expr>& left,
                                      const std::vector<Expr>& right) const {
    const Expr largest = evaluator.let(apply(ScalarOp::kMax, {left[0], right[0]}), "largest");
    const Expr after = scale(evaluator, largest);
    return {largest, apply(ScalarOp::kAdd,
                           {rescaled(evaluator, left, after), rescaled(evaluator, right, after)})};
  }

  Expr exp_of_difference(Expr from, Expr scale) const {
    const Expr difference = apply(ScalarOp::kSub, {from, scale});
    return loop::Cast::make(context_.arena, DType::kF64, apply(ScalarOp::kExp, {difference}));
  }

  // The sum of `values` at another scale.
  Expr rescaled(Evaluator& evaluator, const std::vector<Expr>& values, Expr after) const {
    loop::Arena& arena = context_.arena;
    const Expr lowest =
        loop::Constant::make_float(arena, carried_, -std::numeric_limits<double>::infinity());
    const Expr is_first = apply(ScalarOp::kEq, {values[0], lowest});
    const Expr factor = exp_of_difference(scale(evaluator, values[0]), after);
    const Expr zero = loop::Constant::make_float(arena, DType::kF64, 0.0);
    return apply(ScalarOp::kSelect, {is_first, zero, apply(ScalarOp::kMul, {values[1], factor})});
  }

  Expr log_of_sum(Evaluator& evaluator, const std::vector<Expr>& values) const {
    const Expr sum = loop::Cast::make(context_.arena, carried_, values[1]);
    return apply(ScalarOp::kAdd, {scale(evaluator, values[0]), apply(ScalarOp::kLog, {sum})});
  }

  const Context& context_;
  const Node& node_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const Combine combine_;
  const size_t dim_;
  const DType carried_;
  const Reducer reducer_;
  const Index position_;
};

}  // namespace

void lower_scan(const Context& context, const Node& node, KernelBuffers& buffers,
                LoweredKernel& lowered) {
  ScanLowering(context, node, buffers, lowered).lower();
}

}  // namespace mlcc::lower
