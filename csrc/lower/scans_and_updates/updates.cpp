#include "lower/scans_and_updates/updates.h"

#include <algorithm>
#include <optional>

#include "graph/combine.h"
#include "graph/index_map.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/loops/nest.h"
#include "lower/loops/tiles.h"
#include "support/error.h"

namespace mlcc::lower {

using fusion::axis_symbols;
using graph::Combine;
using graph::Node;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using schedule::Axis;
using Index = std::vector<SymExpr>;

namespace {

// The axis of a row's base.
constexpr const char* kBaseAxis = "base";
// Elements of a row whose base is written right before its updates. Longer ones do not stay in the
// cache anyway, and are to be shared by threads.
constexpr int64_t kLongestRow = 1 << 16;

// Nothing for `set`.
std::optional<ScalarOp> scalar_op(Combine combine) {
  switch (combine) {
  case Combine::kSet: return std::nullopt;
  case Combine::kAdd: return ScalarOp::kAdd;
  case Combine::kMul: return ScalarOp::kMul;
  case Combine::kMax: return ScalarOp::kMax;
  case Combine::kMin: return ScalarOp::kMin;
  case Combine::kAnd: return ScalarOp::kAnd;
  case Combine::kOr: return ScalarOp::kOr;
  case Combine::kLogAddExp:
  case Combine::kArgMax:
  case Combine::kArgMin: break;
  }
  MLCC_UNREACHABLE("lowering: no combine of updates: ", static_cast<int>(combine));
}

class UpdateLowering {
 public:
  UpdateLowering(const Context& context, const Node& node, KernelBuffers& buffers,
                 LoweredKernel& lowered)
      : context_(context), node_(node), buffers_(buffers), lowered_(lowered),
        op_(scalar_op(*graph::parse_combine(node.attr<std::string>("combine")))) {}

  void lower() {
    const auto memory = context_.group.in_place.find(result());
    const bool has_base = memory == context_.group.in_place.end() || memory->second != base();
    add_update_phase(has_base);
  }

 private:
  Value* base() const { return node_.operand(0); }
  Value* source() const { return node_.operands().back(); }
  Value* result() const { return node_.result(); }

  // -- the base, unless the result lies where it is
  void add_base_phase() {
    const Index& domain = result()->type().shape;
    const Index position = axis_symbols(domain.size());
    const auto store = [&](Evaluator& evaluator, Block& block) {
      store_base(evaluator, position, block);
    };
    const Recording recording = record(context_, domain, store);
    const NestAxes axes(domain, std::vector<bool>(domain.size()), recording.indices,
                        context_.graph.assumptions());
    Evaluator evaluator(context_, buffers_, domain, &axes, nullptr);
    Nest nest(context_, axes, context_.choose(facts_of(recording, axes)), evaluator);
    const Nest::Row row = [&](Block& inner) { store(evaluator, inner); };
    add_phase(context_.machine.is_gpu && nest.schedule().tile_axis >= 0
                  ? Tiles(context_, nest, evaluator).build(recording, row)
                  : nest.build(1, nest.schedule().group, row),
              lowered_);
  }

  void store_base(Evaluator& evaluator, const Index& position, Block& block) {
    evaluator.push(&block);
    evaluator.store(result(), position, evaluator.evaluate(base(), position));
    evaluator.pop();
  }

  // Whether each row of the result may get its base right before its updates, which then find it in
  // the cache: where the last dimension alone is indexed, and all rows are updated (the gradient of
  // pooling).
  bool has_short_rows() const {
    const Index& domain = result()->type().shape;
    const Index& updates = source()->type().shape;
    if (context_.machine.is_gpu || updates.size() != domain.size()) return false;
    if (node_.attr<int64_t>("dim") != static_cast<int64_t>(domain.size()) - 1) return false;
    const auto length = domain.back().as_constant();
    return length && *length <= kLongestRow &&
           std::equal(domain.begin(), domain.end() - 1, updates.begin());
  }

  // The place in the result of element kBaseAxis of the row that a point of the source lies in.
  Index base_position() const {
    Index position = axis_symbols(result()->type().shape.size());
    position.back() = SymExpr::symbol(kBaseAxis);
    return position;
  }

  loop::Stmt base_row(Nest& nest, Evaluator& evaluator) {
    static constexpr int64_t kUnroll = 2;  // vectors of a copy side by side
    loop::Arena& arena = context_.arena;
    const Axis row{kBaseAxis, result()->type().shape.back(), false};
    const loop::Variable* variable = nest.pass_variable(row);
    Block inner;
    const Evaluator::Definitions definitions = evaluator.definitions();
    store_base(evaluator, base_position(), inner);
    evaluator.restore(definitions);
    const int64_t lane_bits = std::max<int64_t>(32, 8 * dtype_size(result()->type().dtype));
    const int64_t width = std::max<int64_t>(1, context_.machine.vector_bits / lane_bits);
    const loop::LoopMode mode{loop::LoopKind::kVector, width, kUnroll, 1};
    return loop::For::make(arena, variable, loop::int_constant(arena, 0),
                           loop::from_symbolic(arena, row.extent), mode, std::move(inner));
  }

  // -- the updates
  bool is_ordered() const {
    if (!op_ && has_distinct_places()) return false;
    const DType dtype = result()->type().dtype;
    const bool has_atomic = !op_ || (op_ != ScalarOp::kMul && carried_dtype(dtype) == dtype);
    return !context_.machine.is_gpu || node_.attr<bool>("ordered") || !has_atomic;
  }

  // Whether a range of numbers is among the indices, so that no element is written twice: one that
  // wraps around from negative numbers may come to the same place again.
  bool has_distinct_places() const {
    if (node_.op() == graph::Op::kScatter) return false;
    const bool wraps = node_.attr<bool>("wrap");
    const auto is_range = [&](const Value* index) {
      const Node* iota = index->producer();
      if (iota == nullptr || iota->op() != graph::Op::kIota) return false;
      const int64_t step = iota->attr<SymExpr>("step").as_constant().value_or(0);
      const int64_t start = iota->attr<SymExpr>("start").as_constant().value_or(-1);
      return wraps ? step > 0 && start >= 0 : step != 0;
    };
    const auto indices = graph::index_operands(node_);
    return std::any_of(indices.begin(), indices.end(), is_range);
  }

  // The axes of the source that the index stands for.
  std::vector<bool> indexed_axes() const {
    std::vector<bool> indexed(source()->type().shape.size());
    const auto dim = static_cast<size_t>(node_.attr<int64_t>("dim"));
    const size_t rank =
        node_.op() == graph::Op::kScatter ? 1 : node_.operand(1)->type().shape.size();
    for (size_t d = dim; d < dim + rank; ++d) indexed[d] = true;
    return indexed;
  }

  void add_update_phase(bool has_base) {
    const bool has_rows = has_base && is_ordered() && has_short_rows();
    const Index& domain = source()->type().shape;
    Recording recording;
    KernelBuffers scratch(context_);
    Evaluator recorder(context_, scratch, domain, nullptr, &recording);
    Block block;
    recorder.push(&block);
    const Index at = recorder.indexed_position(node_, axis_symbols(domain.size()));
    const size_t of_index = recording.indices.size();
    update(recorder, at);
    recorder.pop();
    if (has_rows) store_base(recorder, base_position(), block);
    const std::vector<bool> in_order =
        is_ordered() ? indexed_axes() : std::vector<bool>(domain.size());
    const NestAxes axes(domain, in_order, recording.indices, context_.graph.assumptions());
    schedule::NestFacts facts = facts_of(recording, axes);
    if (is_ordered()) facts.order = schedule::ReducedOrder::kAround;
    const schedule::Schedule schedule = context_.choose(facts);
    // A vector over rows, or over a part of one, has no place for the base of one row.
    const bool by_rows = has_rows && !is_kept(axes, schedule.vector_axis);
    if (has_base && !by_rows) add_base_phase();
    lowered_.schedule = schedule;
    Evaluator evaluator(context_, buffers_, domain, &axes, nullptr);
    Nest nest(context_, axes, lowered_.schedule, evaluator);
    recording.indices.resize(of_index);
    const bool is_uniform = !varies_along_vector(nest, recording.indices);
    add_phase(nest.build_around(1, lowered_.schedule.group,
                                [&](Block& body, const Nest::VectorRange& range) {
                                  if (by_rows) body.push_back(base_row(nest, evaluator));
                                  emit_in_order(nest, evaluator, 0, range, is_uniform, body);
                                }),
              lowered_);
  }

  static bool is_kept(const NestAxes& axes, int axis) {
    return axis >= 0 && !axes.axes()[static_cast<size_t>(axis)].reduced;
  }

  static bool varies_along_vector(const Nest& nest, const Index& indices) {
    const int vector = nest.schedule().vector_axis;
    if (vector < 0) return false;
    const std::string& name = nest.axes()[static_cast<size_t>(vector)].name;
    for (const SymExpr& index : indices)
      if (nest.nest_axes().map(index).contains(name)) return true;
    return false;
  }

  // The loops over the axes from `i` on that are gone through in order, and in them the vector
  // loop. An index that is the same for all of it is looked up once.
  void emit_in_order(Nest& nest, Evaluator& evaluator, size_t i, const Nest::VectorRange& range,
                     bool is_uniform, Block& block) {
    loop::Arena& arena = context_.arena;
    while (i < nest.axes().size() && !nest.axes()[i].reduced) ++i;
    if (i < nest.axes().size()) {
      const Axis& axis = nest.axes()[i];
      const loop::Variable* variable = nest.pass_variable(axis);
      Block inner;
      emit_in_order(nest, evaluator, i + 1, range, is_uniform, inner);
      block.push_back(loop::For::make(arena, variable, loop::int_constant(arena, 0),
                                      loop::from_symbolic(arena, axis.extent), {},
                                      std::move(inner)));
      return;
    }
    const Index position = axis_symbols(source()->type().shape.size());
    evaluator.push(&block);
    Index at;
    if (is_uniform) at = evaluator.indexed_position(node_, position);
    nest.emit_vector(range, block, [&](Block& point) {
      evaluator.push(&point);
      update(evaluator, is_uniform ? at : evaluator.indexed_position(node_, position));
      evaluator.pop();
    });
    evaluator.pop();
  }

  // The current element of the source into element `at` of the result.
  void update(Evaluator& evaluator, const Index& at) {
    loop::Arena& arena = context_.arena;
    const Expr element = evaluator.evaluate(source(), axis_symbols(source()->type().shape.size()));
    const Expr offset = evaluator.stored_offset(result(), at);
    const loop::Buffer* buffer = evaluator.buffers().buffer_of(result(), loop::Access::kOut);
    if (op_ && !is_ordered()) {
      evaluator.block().push_back(loop::Atomic::make(arena, *op_, buffer, {offset}, element));
      return;
    }
    Expr value = element;
    if (op_) value = combined(evaluator, loop::Load::make(arena, buffer, {offset}), element);
    evaluator.block().push_back(loop::Store::make(arena, buffer, {offset}, value));
  }

  // 16-bit floats are widened, and rounded again.
  Expr combined(Evaluator& evaluator, Expr old, Expr element) const {
    loop::Arena& arena = context_.arena;
    const DType dtype = element->dtype;
    const DType wide = carried_dtype(dtype);
    const Expr before = evaluator.let(loop::Cast::make(arena, wide, old), "old");
    const Expr after = loop::apply(arena, *op_, {before, loop::Cast::make(arena, wide, element)});
    return evaluator.let(loop::Cast::make(arena, dtype, after), "new");
  }

  const Context& context_;
  const Node& node_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const std::optional<ScalarOp> op_;
};

}  // namespace

void lower_update(const Context& context, const Node& node, KernelBuffers& buffers,
                  LoweredKernel& lowered) {
  UpdateLowering(context, node, buffers, lowered).lower();
}

}  // namespace mlcc::lower
