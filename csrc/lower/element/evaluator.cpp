#include "lower/element/evaluator.h"

#include <algorithm>
#include <type_traits>

#include "loop/cost.h"
#include "lower/element/philox.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Node;
using graph::Op;
using graph::OpClass;
using graph::Value;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

// What eager raises for an index out of range, by the op it came from: {0} is the index, {1} the
// extent of `dim`, which the `place`-th index stands for.
loop::ErrorText index_error(const std::string& op, int64_t dim, size_t place) {
  const auto out_of_bounds = [](int64_t d) {
    return "index {0} is out of bounds for dimension " + std::to_string(d) + " with size {1}";
  };
  if (op == "index_copy") return {0, "IndexError", "index_copy_(): " + out_of_bounds(dim)};
  if (op == "index_fill") return {0, "IndexError", out_of_bounds(dim)};
  if (op == "index_select" && dim == 1)
    return {0, "RuntimeError", "INDICES element is out of DATA bounds, id={0} axis_dim={1}"};
  if (op == "embedding" || op == "index_select" || op == "index_add")
    return {0, "IndexError", "index out of range in self"};
  if (op == "put")
    return {0, "IndexError",
            "out of range: tried to access index {0} on a tensor of {1} elements."};
  if (op == "masked_scatter")
    return {0, "RuntimeError", "Number of elements of source < number of ones in mask"};
  static constexpr std::string_view kUnpool = "max_unpool ";  // and the sizes of the image
  if (std::string_view(op).substr(0, kUnpool.size()) == kUnpool)
    return {0, "RuntimeError",
            "Found an invalid max index: {0} (output volumes are of size " +
                op.substr(kUnpool.size()) + ")"};
  if (op == "nll_loss") return {0, "IndexError", "Target {0} is out of bounds."};
  if (op == "gather" || op == "scatter") return {0, "RuntimeError", out_of_bounds(dim)};
  // eager moves the indexed dimensions to the front
  return {0, "IndexError", out_of_bounds(static_cast<int64_t>(place))};
}

bool divides_integers(Op op) {
  return op == Op::kDivTruncInteger || op == Op::kDivFloorInteger || op == Op::kFmod ||
         op == Op::kRemainderInteger;
}

}  // namespace

bool Evaluator::Key::operator<(const Key& other) const {
  if (value != other.value) return value->id() < other.value->id();
  if (mask != other.mask)
    return mask < other.mask;  // only looked up, never iterated: the order reaches no output
  return index < other.index;
}

Evaluator::Evaluator(const Context& context, KernelBuffers& buffers, const Index& domain,
                     const NestAxes* axes, Recording* recording)
    : plan_(context.plan), group_(context.group), arena_(context.arena), words_(context.words),
      buffers_(buffers), axes_(axes), recording_(recording), formulas_(arena_),
      assumptions_(context.graph.assumptions()) {
  for (size_t d = 0; d < domain.size(); ++d)
    assumptions_.set_index(fusion::axis_name(d), domain[d]);
}

void Evaluator::push(loop::Block* block) {
  blocks_.push_back(block);
  scopes_.emplace_back();
}

void Evaluator::pop() {
  blocks_.pop_back();
  scopes_.pop_back();
}

void Evaluator::record(const SymExpr& index, Value* accessed, bool is_store) {
  if (recording_ == nullptr) return;
  recording_->indices.push_back(index);
  if (accessed != nullptr)
    recording_->accesses.push_back(
        {index, elements_accessed(is_store) * dtype_size(accessed->type().dtype), is_store,
         accessed, mask_ != nullptr});
}

// How many elements one access moves.
int64_t Evaluator::elements_accessed(bool is_store) const {
  return is_store || words_.are_read ? words_.elements : 1;
}

// Whether an expression over the nest's axes means less in the current segments than elsewhere.
bool Evaluator::is_cut(const SymExpr& over_nest) const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const Segment& segment) { return over_nest.contains(segment.axis); });
}

// What `function` says of an expression with each segment's axis as begin + i, i < end - begin; an
// expression that it gives is one over the axes again.
template <typename Function>
auto Evaluator::in_segments(SymExpr over_nest, const Function& function) const {
  const auto place_in = [](const Segment& segment) { return "in_" + segment.axis; };
  Assumptions assumptions = axes_->assumptions();
  for (const Segment& segment : segments_) {
    assumptions.set_index(place_in(segment), segment.end - segment.begin);
    over_nest =
        over_nest.replaced(segment.axis, segment.begin + SymExpr::symbol(place_in(segment)));
  }
  auto result = function(over_nest, assumptions);
  if constexpr (std::is_same_v<decltype(result), SymExpr>)
    for (const Segment& segment : segments_)
      result = result.replaced(place_in(segment), SymExpr::symbol(segment.axis) - segment.begin);
  return result;
}

Expr Evaluator::index_expr(const SymExpr& over_domain) {
  const SymExpr simple = assumptions_.simplify(over_domain);
  record(simple, nullptr, false);
  return nest_expr(mapped(simple));
}

// Over the nest's axes, as simple as the segment allows.
SymExpr Evaluator::mapped(const SymExpr& over_domain) const {
  if (axes_ == nullptr) return over_domain;
  const SymExpr e = axes_->map(over_domain);
  if (!is_cut(e)) return e;
  return in_segments(e, [](const SymExpr& inside, const Assumptions& assumptions) {
    return assumptions.simplify(inside);
  });
}

// In terms of what joined axes come to, if none of them is left then.
SymExpr Evaluator::with_joined(const SymExpr& over_nest) const {
  if (joined_.variable == nullptr) return over_nest;
  const auto linear = over_nest.linear_in(joined_.axes.back());
  if (!linear || linear->coefficient.equals_constant(0)) return over_nest;
  const SymExpr whole = SymExpr::symbol(joined_.variable->name);
  SymExpr joined = over_nest + linear->coefficient * (whole - joined_.place);
  const bool is_left = std::any_of(joined_.axes.begin(), joined_.axes.end(),
                                   [&](const std::string& axis) { return joined.contains(axis); });
  return is_left ? over_nest : joined;
}

Expr Evaluator::nest_expr(const SymExpr& over_nest) const {
  const auto variable_of = [&](std::string_view name) -> std::optional<SymExpr> {
    const auto found = axis_variables_.find(name);
    if (found == axis_variables_.end()) return std::nullopt;
    return SymExpr::symbol(found->second->name);
  };
  return loop::from_symbolic(arena_, with_joined(over_nest).substitute(variable_of));
}

Expr Evaluator::let(Expr e, std::string_view base) {
  if (e->kind == loop::ExprKind::kConstant || e->kind == loop::ExprKind::kVariable) return e;
  const Variable* variable = Variable::make(arena_, e->dtype, arena_.fresh_name(base));
  block().push_back(loop::Let::make(arena_, variable, e));
  return variable;
}

// Where the value's buffer has the element, in what one access moves.
SymExpr Evaluator::offset_of(const Value& value, const Index& index, bool is_store) const {
  const SymExpr offset =
      assumptions_.simplify(graph::linearize(index, value.type().dense_or_strides()));
  const auto accesses = offset.divide_exactly(elements_accessed(is_store));
  MLCC_CHECK(accesses, "lowering: ", offset, " lies within a word");
  return *accesses;
}

// The elements at `position`, the first one in the lowest bits.
Expr Evaluator::word(const Node& node, Index position) {
  const auto element = [&](int64_t i) {
    position.back() = i;
    return evaluate(node.operand(0), position);
  };
  if (words_.are_read) return element(0);
  const auto number = [&](int64_t value) {
    return loop::Constant::make_int(arena_, DType::kI32, value);
  };
  const int64_t bits = 32 / words_.elements;
  Expr all = nullptr;
  for (int64_t i = 0; i < words_.elements; ++i) {
    Expr part = loop::Cast::make(arena_, DType::kI32, element(i));
    part = loop::apply(arena_, ScalarOp::kAnd, {part, number((int64_t{1} << bits) - 1)});
    if (i > 0) part = loop::apply(arena_, ScalarOp::kShl, {part, number(bits * i)});
    all = i == 0 ? part : loop::apply(arena_, ScalarOp::kOr, {all, part});
  }
  return let(all, "word");
}

Expr Evaluator::load_value(Value* value, const Index& index) {
  const auto stored = stored_.find(value);
  if (stored != stored_.end() && stored->second.place)
    return loop::Load::make(arena_, stored->second.buffer, {nest_expr(*stored->second.place)},
                            mask_);
  const loop::Buffer* buffer = stored != stored_.end()
                                   ? stored->second.buffer
                                   : buffers_.buffer_of(value, loop::Access::kIn);
  if (buffer->access == loop::Access::kValue) return loop::Load::make(arena_, buffer, {});
  const SymExpr offset = offset_of(*value, index, false);
  record(offset, value, false);
  const SymExpr over_nest = mapped(offset);
  if (mask_ == nullptr)
    for (const Tile& tile : tiles_)
      if (tile.value == value && tile.offset == over_nest)
        return loop::Load::make(arena_, tile.stored.buffer, {nest_expr(*tile.stored.place)});
  return loop::Load::make(arena_, buffer, {nest_expr(over_nest)}, mask_);
}

void Evaluator::store(Value* value, const Index& position, Expr element, Expr streams) {
  const loop::Buffer* buffer = buffers_.buffer_of(value, loop::Access::kOut);
  block().push_back(loop::Store::make(arena_, buffer, {stored_offset(value, position)}, element,
                                      nullptr, streams));
}

Expr Evaluator::stored_offset(Value* value, const Index& position) {
  const SymExpr offset = offset_of(*value, position, true);
  record(offset, value, true);
  return nest_expr(mapped(offset));
}

Expr Evaluator::evaluate(Value* value, const Index& index) {
  Index simple;
  for (const SymExpr& i : index) simple.push_back(assumptions_.simplify(i));
  const Key key{value, std::move(simple), mask_};
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(key);
    if (found != scope->end()) return found->second;
  }
  const Expr element = compute(value, key.index);
  return scopes_.back()[key] = element;
}

Expr Evaluator::compute(Value* value, const Index& index) {
  const Node* node = value->producer();
  if (node == nullptr) return let(load_value(value, index), "x");
  const auto row = rows_.find(value);
  if (row != rows_.end()) return row->second;
  const bool own = group_.placements.count(node) != 0;
  if (own) {
    if (stored_.count(value)) return let(load_value(value, index), "x");
    return evaluate_node(*node, index);
  }
  if (!fusion::is_folded(plan_, *node)) return let(load_value(value, index), "x");
  return evaluate_node(*node, index);
}

Expr Evaluator::evaluate_node(const Node& node, const Index& position) {
  if (graph::is_single_index_map(node.op())) {
    if (node.op() == Op::kExtend) record_ends(node, position);
    const graph::Access access = graph::operand_access(node, position, assumptions_);
    return evaluate(access.value, access.index);
  }
  if (node.op() == Op::kCat) return cat(node, position);
  if (node.op() == Op::kPad) return pad(node, position);
  switch (graph::op_info(node.op()).op_class) {
  case OpClass::kPointwise: return pointwise(node, position);
  case OpClass::kCreation: return constant(node, position);
  case OpClass::kGather: return indirect(node, position);
  case OpClass::kReduction:
  case OpClass::kIndexMap:
  case OpClass::kUpdate:
  case OpClass::kScan:
  case OpClass::kContraction:
  case OpClass::kAttention:
  case OpClass::kExtern: break;
  }
  MLCC_UNREACHABLE("lowering: %", node.result()->id(), " = ", graph::op_info(node.op()).text,
                   " has no scalar code at this place");
}

Expr Evaluator::pointwise(const Node& node, const Index& index) {
  // The copy: nothing else is computed there (may_go_by_words).
  if (words_.elements > 1) return word(node, index);
  std::vector<Expr> args;
  for (Value* operand : node.operands())
    args.push_back(evaluate(operand, graph::broadcast_index(operand->type().shape, index)));
  const DType result = node.result()->type().dtype;
  if (node.op() == Op::kCast) {
    if (recording_ != nullptr) ++recording_->ops;
    return let(loop::Cast::make(arena_, result, args[0]), "v");
  }
  if (node.op() == Op::kPhilox) {
    if (recording_ != nullptr) {
      recording_->ops += kPhiloxOps;
      recording_->draws = true;
      recording_->widest_bytes = std::max(recording_->widest_bytes, dtype_size(result));
    }
    return philox(arena_, args[0], args[1], [&](Expr e) { return let(e, "r"); });
  }
  if (divides_integers(node.op()) && is_integer(args[1]->dtype)) args[1] = checked_divisor(args[1]);
  const bool is_select = graph::op_info(node.op()).rule == graph::DTypeRule::kSelect;
  const Expr element = formulas_.instantiate(node.op(), args[is_select ? 1 : 0]->dtype, args);
  MLCC_CHECK(element->dtype == result, "lowering: formula of ", graph::op_info(node.op()).text,
             " gives ", dtype_name(element->dtype), ", the node says ", dtype_name(result));
  if (recording_ != nullptr) {
    recording_->ops += loop::ops_of(element);
    recording_->widest_bytes = std::max(recording_->widest_bytes, dtype_size(result));
  }
  return let(element, "v");
}

// Eager raises on an integer division by 0; lanes that do not count (masked off) divide by 1
// instead of trapping.
Expr Evaluator::checked_divisor(Expr divisor) {
  const Expr zero = loop::Constant::make_int(arena_, divisor->dtype, 0);
  const Expr valid = let(loop::apply(arena_, ScalarOp::kNe, {divisor, zero}), "valid");
  const Expr counts = mask_ == nullptr
                          ? valid
                          : loop::apply(arena_, ScalarOp::kOr,
                                        {loop::apply(arena_, ScalarOp::kNot, {mask_}), valid});
  block().push_back(
      loop::Check::make(arena_, counts, buffers_.error_code("RuntimeError", "ZeroDivisionError")));
  const Expr one = loop::Constant::make_int(arena_, divisor->dtype, 1);
  return let(loop::apply(arena_, ScalarOp::kSelect, {valid, divisor, one}), "divisor");
}

// Each part is evaluated under its own mask, so that no load leaves its buffer; then the right one
// is selected. Where the place says which part it is, there is nothing to select.
Expr Evaluator::cat(const Node& node, const Index& index) {
  const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const Expr outer_mask = mask_;
  const SymExpr& extent = node.result()->type().shape[dim];
  SymExpr begin;
  Expr result = nullptr;
  for (Value* part : node.operands()) {
    const SymExpr start = begin;
    begin = begin + part->type().shape[dim];
    Index part_index = index;
    part_index[dim] = index[dim] - start;
    const std::optional<bool> is_here = is_between(index[dim], start, begin);
    if (is_here && *is_here) return evaluate(part, part_index);
    if (is_here && (result != nullptr || part != node.operands().back())) continue;
    const Expr inside = let(between(index[dim], start, begin, extent), "in");
    mask_ = masked_also_by(inside);
    const Expr element = evaluate(part, part_index);
    mask_ = outer_mask;
    result = result == nullptr
                 ? element
                 : let(loop::apply(arena_, ScalarOp::kSelect, {inside, element, result}), "v");
  }
  return result;
}

Expr Evaluator::masked_also_by(Expr condition) {
  if (mask_ == nullptr) return condition;
  return let(loop::apply(arena_, ScalarOp::kAnd, {mask_, condition}), "in");
}

// The operand's element under a mask, or the number.
Expr Evaluator::pad(const Node& node, const Index& index) {
  const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const SymExpr before = node.attr<int64_t>("before");
  const SymExpr end = before + node.operand(0)->type().shape[dim];
  Index inner = index;
  inner[dim] = index[dim] - before;
  const std::optional<bool> is_inside = is_between(index[dim], before, end);
  if (is_inside) return *is_inside ? evaluate(node.operand(0), inner) : number(node);
  const Expr inside = let(between(index[dim], before, end, node.result()->type().shape[dim]), "in");
  const Expr outer_mask = mask_;
  mask_ = masked_also_by(inside);
  const Expr element = evaluate(node.operand(0), inner);
  mask_ = outer_mask;
  return let(loop::apply(arena_, ScalarOp::kSelect, {inside, element, number(node)}), "v");
}

// Whether begin <= at < end, where the place decides it. Notes the ends when recording.
std::optional<bool> Evaluator::is_between(const SymExpr& at, const SymExpr& begin,
                                          const SymExpr& end) const {
  const auto decide_between = [](const SymExpr& place, const SymExpr& low, const SymExpr& high,
                                 const Assumptions& assumptions) {
    if (assumptions.is_nonnegative(place - low) && assumptions.is_less(place, high))
      return std::optional(true);
    if (assumptions.is_less(place, low) || assumptions.is_nonnegative(place - high))
      return std::optional(false);
    return std::optional<bool>();
  };
  // What holds in the whole domain asks nothing of the axes.
  if (const auto everywhere = decide_between(at, begin, end, assumptions_)) return everywhere;
  if (recording_ != nullptr) recording_->ranges.push_back({at, begin, end});
  if (axes_ == nullptr) return std::nullopt;
  const auto decide = [&](const SymExpr& place, const Assumptions& assumptions) {
    return decide_between(place, axes_->map(begin), axes_->map(end), assumptions);
  };
  const SymExpr place = axes_->map(at);
  if (!is_cut(place)) return decide(place, axes_->assumptions());
  return in_segments(place, decide);
}

void Evaluator::record_ends(const Node& node, const Index& index) {
  if (recording_ == nullptr) return;
  const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const SymExpr before = node.attr<int64_t>("before");
  recording_->ranges.push_back({index[dim], before, before + node.operand(0)->type().shape[dim]});
}

// begin <= at < end, without the bounds that the whole dimension [0, extent) implies.
Expr Evaluator::between(const SymExpr& at, const SymExpr& begin, const SymExpr& end,
                        const SymExpr& extent) {
  const Expr place = index_expr(at);
  const Expr low = loop::apply(arena_, ScalarOp::kGe, {place, index_expr(begin)});
  const Expr high = loop::apply(arena_, ScalarOp::kLt, {place, index_expr(end)});
  if (begin.equals_constant(0)) return high;
  return end == extent ? low : loop::apply(arena_, ScalarOp::kAnd, {low, high});
}

Expr Evaluator::constant(const Node& node, const Index& index) {
  const DType dtype = node.result()->type().dtype;
  if (node.op() == Op::kSizeValue)
    return loop::Cast::make(arena_, dtype, index_expr(node.attr<SymExpr>("size")));
  if (node.op() == Op::kIota) {
    const SymExpr element = node.attr<SymExpr>("start") + node.attr<SymExpr>("step") * index[0];
    return let(loop::Cast::make(arena_, dtype, index_expr(element)), "v");
  }
  MLCC_CHECK(node.op() == Op::kFull, "lowering: ", graph::op_info(node.op()).text,
             " is no constant");
  return number(node);
}

Expr Evaluator::number(const Node& node) {
  // What words are filled up with (may_go_by_words).
  if (words_.elements > 1) return loop::Constant::make_int(arena_, words_.dtype_read(), 0);
  const DType dtype = node.result()->type().dtype;
  const graph::Attr& value = node.attr("value");
  if (const auto* integer = std::get_if<int64_t>(&value))
    return loop::Constant::make_int(arena_, dtype, *integer);
  return loop::Constant::make_float(arena_, dtype, std::get<double>(value));
}

// The index as i64, negative ones counted from the end where the op does so, and checked against
// the extent.
Expr Evaluator::checked_index(const Node& node, size_t place, Expr element, const SymExpr& extent) {
  const Expr size = index_expr(extent);
  const Expr zero = loop::int_constant(arena_, 0);
  const Expr given = let(loop::Cast::make(arena_, DType::kI64, element), "at");
  Expr at = given;
  if (node.has_attr("wrap") && node.attr<bool>("wrap")) {
    const Expr negative = loop::apply(arena_, ScalarOp::kLt, {at, zero});
    const Expr wrapped = loop::apply(arena_, ScalarOp::kAdd, {at, size});
    at = let(loop::apply(arena_, ScalarOp::kSelect, {negative, wrapped, at}), "at");
  }
  if (node.attr<std::string>("error") == "none") return at;
  const Expr low = loop::apply(arena_, ScalarOp::kGe, {at, zero});
  const Expr high = loop::apply(arena_, ScalarOp::kLt, {at, size});
  Expr valid = loop::apply(arena_, ScalarOp::kAnd, {low, high});
  if (mask_ != nullptr)
    valid =
        loop::apply(arena_, ScalarOp::kOr, {loop::apply(arena_, ScalarOp::kNot, {mask_}), valid});
  const loop::ErrorText error =
      index_error(node.attr<std::string>("error"), node.attr<int64_t>("dim"), place);
  std::vector<Expr> details;
  if (error.text.find('{') != std::string::npos) details = {given, size};
  block().push_back(loop::Check::make(
      arena_, valid, buffers_.error_code(error.exception, error.text), std::move(details)));
  return at;
}

// A symbol that stands for the element, known to lie in [0, extent).
SymExpr Evaluator::dynamic_index(Expr element, const SymExpr& extent) {
  const Variable* variable = loop::as<Variable>(element);
  if (variable == nullptr) {
    variable = Variable::make(arena_, DType::kI64, arena_.fresh_name("at"));
    block().push_back(loop::Let::make(arena_, variable, element));
  }
  assumptions_.set_index(variable->name, extent);
  return SymExpr::symbol(variable->name);
}

Expr Evaluator::indirect(const Node& node, const Index& index) {
  return evaluate(node.operand(0), indexed_position(node, index));
}

Index Evaluator::indexed_position(const Node& node, const Index& index) {
  const std::span<Value* const> indices = graph::index_operands(node);
  const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const bool is_elementwise = node.op() == Op::kGather || node.op() == Op::kScatter;
  const size_t rank = is_elementwise ? 1 : indices[0]->type().shape.size();
  const Index index_position =
      is_elementwise ? index : Index(index.begin() + dim, index.begin() + dim + rank);
  Index at(index.begin(), index.begin() + dim);
  for (size_t i = 0; i < indices.size(); ++i) {
    const SymExpr& extent = node.operand(0)->type().shape[dim + i];
    const Expr element = checked_index(node, i, evaluate(indices[i], index_position), extent);
    at.push_back(dynamic_index(element, extent));
  }
  at.insert(at.end(), index.begin() + dim + rank, index.end());
  return at;
}

Recording record(const Context& context, const Index& domain,
                 const std::function<void(Evaluator&, loop::Block&)>& run) {
  Recording recording;
  KernelBuffers scratch(context);
  Evaluator recorder(context, scratch, domain, nullptr, &recording);
  loop::Block block;
  run(recorder, block);
  return recording;
}

Recording record_value(const Context& context, Value* value, const Index& index) {
  return record(context, context.group.domain, [&](Evaluator& recorder, loop::Block& block) {
    recorder.push(&block);
    recorder.evaluate(value, index);
    recorder.pop();
  });
}

}  // namespace mlcc::lower
