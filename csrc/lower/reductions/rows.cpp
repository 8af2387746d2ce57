#include "lower/reductions/rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "fusion/online.h"
#include "graph/index_map.h"
#include "lower/element/formula.h"

namespace mlcc::lower {

using graph::Node;
using graph::OpClass;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

// Elements of a row buffer on the stack, over all buffers of a kernel: 128 KB of f32, well inside a
// thread's stack.
constexpr int64_t kMaxStackElements = 32768;
// On a GPU rows lie in registers or shared memory: elements for each thread of the group, and over
// all buffers of a kernel (32 KB of f32 shared memory).
constexpr int64_t kMostRowElementsPerThread = 64;
constexpr int64_t kMostGpuRowElements = 8192;
// Ops that make it cheaper to keep a row's element than to compute it again in the next pass.
constexpr int64_t kExpensiveOps = 8;
// Vectors along a kept axis of which less than this part is filled are mostly empty.
constexpr int64_t kLeastFilledPart = 2;
constexpr int64_t kBytesOfElement = 4;  // about

}  // namespace

Rows::Rows(const Context& context, const GroupNodes& nodes, Nest& nest, Evaluator& evaluator,
           int64_t most_elements)
    : context_(context), nodes_(nodes), nest_(nest), evaluator_(evaluator),
      most_elements_(most_elements) {
  moves_much_ = find_moves_much();
  choose_kept();
  choose_online();
}

// -- values kept between passes

// A full value that a later pass reads again is kept if it is written anyway, or if it costs more
// than a load.
void Rows::choose_kept() {
  std::map<const Value*, int> last_use;
  for (const Node* node : context_.group.nodes)
    for (const Value* source : nodes_.sources_of(*node)) {
      const bool in_pass = is_reduction(*node) || !nodes_.per_row(*node);
      last_use[source] = std::max(last_use[source], in_pass ? nodes_.level_of(node->result()) : 0);
    }
  for (const auto& [value, level] : last_use)
    if (level > nodes_.level_of(value)) read_back_.insert(value);
  if (nest_.schedule().pieces > 1) return;  // nothing but reductions reads them
  int64_t stack = 0;
  for (const Node* node : context_.group.nodes) {
    const Value* value = node->result();
    if (is_reduction(*node) || nodes_.per_row(*node) || last_use[value] <= nodes_.level_of(value))
      continue;
    if (nodes_.is_output(value)) continue;  // written in its own pass, read back from there
    if (expression_ops(*node) < kExpensiveOps) continue;
    if (const loop::Buffer* row = make_row_buffer(*value, stack))
      kept_.push_back({value, row, nullptr});
    else if (Value* output = later_output(*node, last_use[value]))
      kept_.push_back({value, nullptr, output});
  }
}

// Whether the kernel moves so much that the caches cannot hold it, by the sizes of a call; null:
// surely or probably not. Stores that go past the caches then save reading what they overwrite.
Expr Rows::find_moves_much() const {
  if (!context_.moves_much()) return nullptr;
  const SymExpr& moved = context_.group.ideal_bytes;
  loop::Arena& arena = context_.arena;
  if (moved.as_constant()) return loop::Constant::make_int(arena, DType::kBool, 1);
  return loop::apply(arena, loop::ScalarOp::kGe,
                     {loop::from_symbolic(arena, moved),
                      loop::int_constant(arena, context_.machine.streaming_bytes)});
}

// Whether the kernel never reads the memory of an output.
bool Rows::is_write_only(const Value& value) const {
  return !read_back_.count(&value) && !context_.group.in_place.count(&value) &&
         std::none_of(kept_.begin(), kept_.end(),
                      [&](const Kept& kept) { return kept.output == &value; });
}

// Null where a row is too long or of unknown length, or if there is one for each lane. `elements`:
// of all buffers so far.
const loop::Buffer* Rows::make_row_buffer(const Value& value, int64_t& elements) {
  if (!nest_.vector_is_reduced()) return nullptr;
  const int64_t row = nest_.row_extent().as_constant().value_or(most_elements_);
  if (row <= 0 || elements + row > most_row_elements()) return nullptr;
  elements += row;
  loop::Buffer buffer{context_.arena.fresh_name("row"),
                      value.type().dtype,
                      loop::Scope::kStack,
                      loop::Access::kInOut,
                      {loop::int_constant(context_.arena, row)},
                      {}};
  return context_.arena.make_buffer(std::move(buffer));
}

bool Rows::keeps_in_outputs() const {
  return std::any_of(kept_.begin(), kept_.end(),
                     [](const Kept& kept) { return kept.output != nullptr; });
}

int Rows::kept_levels() const {
  return std::accumulate(kept_.begin(), kept_.end(), 0, [&](int sum, const Kept& kept) {
    return sum + nodes_.level_of(kept.value);
  });
}

void Rows::add_row_buffers() {
  for (const Kept& kept : kept_)
    if (kept.row != nullptr) nest_.add_row_buffer(kept.row);
}

// An output whose element the pass of the last use computes from the node's at the same place, and
// which nothing has written until then: it can hold the node's elements so long. Null: none.
Value* Rows::later_output(const Node& node, int last_use) const {
  if (context_.machine.is_gpu) return nullptr;  // other threads may have a later pass
  if (!passes_stay_close()) return nullptr;
  Value* found = nullptr;
  for (const Node* reader : context_.group.nodes) {
    if (nodes_.level_of(reader->result()) != last_use || is_reduction(*reader)) continue;
    if (nodes_.per_row(*reader) || !nodes_.sources_of(*reader).count(node.result())) continue;
    if (found != nullptr) return nullptr;
    found = reader->result();
  }
  if (found == nullptr || !nodes_.is_output(found) || context_.group.in_place.count(found) ||
      found->type().dtype != node.result()->type().dtype ||
      nodes_.position(*found->producer()) != nodes_.position(node))
    return nullptr;
  const bool is_taken = std::any_of(kept_.begin(), kept_.end(),
                                    [&](const Kept& other) { return other.output == found; });
  return is_taken ? nullptr : found;
}

// Whether what a pass reads is still in a second-level cache when the next one begins. Where it is
// not, computing a value again costs less than writing it to memory and reading it.
bool Rows::passes_stay_close() const {
  if (nest_.schedule().rows == 0 && !nest_.vector_is_reduced()) return true;
  int64_t columns = 1;
  if (!nest_.vector_is_reduced()) {
    const auto& axis = nest_.axes()[static_cast<size_t>(nest_.schedule().vector_axis)];
    columns = std::min(nest_.columns_of_iteration(), context_.expected(axis.extent));
  }
  return context_.expected(nest_.row_extent()) * columns * kBytesOfElement <=
         context_.machine.second_level_bytes;
}

int64_t Rows::most_row_elements() const {
  if (!context_.machine.is_gpu) return kMaxStackElements;
  return std::min(kMostGpuRowElements, nest_.schedule().group * kMostRowElementsPerThread);
}

int64_t Rows::expression_ops(const Node& node) const {
  if (graph::op_info(node.op()).op_class != OpClass::kPointwise) return 1;
  int64_t total = Formulas(context_.arena).cost(node);
  for (const Value* operand : node.operands())
    if (total < kExpensiveOps && is_computed_again(*operand))
      total += expression_ops(*operand->producer());
  return total;
}

// Whether a pass that needs the value computes it, as far as is decided.
bool Rows::is_computed_again(const Value& value) const {
  const Node* producer = value.producer();
  if (producer == nullptr) return false;
  if (context_.plan.inlined.count(producer)) return true;
  return context_.group.placements.count(producer) && !is_reduction(*producer) &&
         !nodes_.per_row(*producer) && !nodes_.is_output(&value) && kept(&value) == nullptr;
}

const Rows::Kept* Rows::kept(const Value* value) const {
  for (const Kept& one : kept_)
    if (one.value == value) return &one;
  return nullptr;
}

// Where the element of a value that a pass stores lies.
Evaluator::Stored Rows::place_of(const Node& node) {
  const Kept* place = kept(node.result());
  if (place != nullptr && place->row != nullptr) return {place->row, nest_.place_among(true)};
  Value* memory = place != nullptr ? place->output : node.result();
  const loop::Buffer* buffer = evaluator_.buffers().buffer_of(memory, loop::Access::kOut);
  if (place == nullptr) return {buffer, {}};
  const SymExpr offset = graph::linearize(nodes_.position(node), memory->type().dense_or_strides());
  return {buffer, nest_.nest_axes().map(evaluator_.assumptions().simplify(offset))};
}

// -- the passes

void Rows::emit(Block& block) {
  evaluator_.push(&block);
  if (online_) {
    emit_rows(0, false);
    finish_online(reduce_online(nullptr, block), block);
    emit_levels(online_->levels(), block);
  } else {
    emit_levels(0, block);
  }
  evaluator_.pop();
}

void Rows::emit_piece(const Pieces& pieces, Block& block) {
  evaluator_.push(&block);
  emit_rows(0, true);
  if (online_)
    pieces.store(reduce_online(&pieces, block), block);
  else
    emit_level(0, &pieces, block);
  evaluator_.pop();
}

void Rows::emit_combined(const Pieces& pieces, Block& block) {
  evaluator_.push(&block);
  emit_rows(0, false);
  if (online_) {
    const auto merge = [&](const Reduced& left, const Reduced& right, Block& inner) {
      return online_->merge(left, right, inner);
    };
    finish_online(pieces.combine(online_->reducers(), merge, block), block);
    emit_levels(online_->levels(), block);
  } else {
    const std::vector<const Node*> reductions = nodes_.reductions();
    const std::vector<Reducer> reducers = reducers_of(reductions);
    finish_reductions(reductions, reducers, pieces.combine(reducers, block));
    emit_levels(1, block);
  }
  evaluator_.pop();
}

std::vector<Reducer> Rows::piece_reducers() const {
  return online_ ? online_->reducers() : reducers_of(nodes_.reductions());
}

void Rows::emit_levels(int first, Block& block) {
  for (int level = first; level <= nodes_.last_level(); ++level) {
    emit_rows(level, false);
    emit_level(level, nullptr, block);
  }
  emit_rows(std::max(first, nodes_.last_level() + 1), false);
}

// -- several levels in one pass

// Where a row does not stay in a cache between the passes, and where pieces of it are reduced
// apart.
void Rows::choose_online() {
  if (context_.machine.is_gpu) return;
  int levels = 0;
  while (levels <= nodes_.last_level()) {
    const Pass pass = pass_of(levels);
    const bool fits =
        levels == 0 ||
        (pass.stores.empty() &&
         std::all_of(pass.reductions.begin(), pass.reductions.end(),
                     [&](const Node* node) { return context_.group.repairs.count(node) != 0; }));
    if (!fits || pass.reductions.empty()) break;
    ++levels;
  }
  const bool has_loops = std::any_of(nest_.axes().begin(), nest_.axes().end(),
                                     [](const schedule::Axis& axis) { return axis.reduced; });
  if (levels < 2 || !has_loops) return;
  const auto hint = [&](std::string_view name) { return context_.hint(name); };
  const bool saves =
      !passes_stay_close() && fusion::has_long_pieces(context_.group, hint) && !has_few_columns();
  if (nest_.schedule().pieces > 1 || saves)
    online_.emplace(context_, nodes_, nest_, evaluator_, levels);
}

// Whether most lanes of vectors along a kept axis are empty: repairs take as long as full ones.
bool Rows::has_few_columns() const {
  if (nest_.vector_is_reduced()) return false;
  const auto& axis = nest_.axes()[static_cast<size_t>(nest_.schedule().vector_axis)];
  return kLeastFilledPart * context_.expected(axis.extent) < nest_.schedule().width;
}

Reduced Rows::reduce_online(const Pieces* piece, Block& block) {
  std::vector<PassAxis> axes = nest_.pass_axes();
  if (piece != nullptr) piece->cut(axes.front(), block);
  const auto reduce_level = [&](int level, const PassAxis& axis, Block& inner) {
    Pass pass = pass_of(level);
    pass.summed = online_->differences_of(level);
    const Reduced results = reduce(pass, {axis}, inner);
    remember(pass.stores);
    return results;
  };
  return online_->emit(axes, reduce_level, block);
}

void Rows::finish_online(const Reduced& results, Block& block) {
  finish_reductions(online_->reductions(), online_->reducers(), online_->settle(results, block));
  for (int level = 1; level < online_->levels(); ++level) emit_rows(level, false);
}

// Row values become available once the passes below their level are done.
void Rows::emit_rows(int level, bool is_piece) {
  for (const Node* node : context_.group.nodes) {
    if (!nodes_.per_row(*node) || is_reduction(*node) || nodes_.level_of(node->result()) != level)
      continue;
    finish_row(*node, evaluator_.evaluate_node(*node, nodes_.position(*node)), is_piece);
  }
}

void Rows::finish_row(const Node& node, Expr element, bool is_piece) {
  evaluator_.define_row(node.result(), element);
  if (nodes_.is_output(node.result()) && !is_piece)
    evaluator_.store(node.result(), nodes_.position(node), element);
}

Rows::Pass Rows::pass_of(int level) const {
  Pass pass;
  for (const Node* node : context_.group.nodes) {
    if (nodes_.level_of(node->result()) != level) continue;
    if (is_reduction(*node))
      pass.reductions.push_back(node);
    else if (!nodes_.per_row(*node) &&
             (nodes_.is_output(node->result()) || kept(node->result()) != nullptr))
      pass.stores.push_back(node);
  }
  return pass;
}

// `piece` not null: the current piece of it only.
void Rows::emit_level(int level, const Pieces* piece, Block& block) {
  const Pass pass = pass_of(level);
  if (pass.reductions.empty() && pass.stores.empty()) return;
  std::vector<PassAxis> axes = nest_.pass_axes();
  if (piece != nullptr) piece->cut(axes.front(), block);
  if (pass.reductions.empty()) return emit_store_pass(pass.stores, axes, 0, block);
  const Reduced results = reduce(pass, axes, block);
  if (piece != nullptr) return piece->store(results, block);
  remember(pass.stores);
  finish_reductions(pass.reductions, reducers_of(pass.reductions), results);
}

std::vector<Expr> Rows::elements_of(const std::vector<const Node*>& stores) {
  std::vector<Expr> elements;
  for (const Node* node : stores)
    elements.push_back(evaluator_.evaluate(node->result(), nodes_.position(*node)));
  return elements;
}

void Rows::emit_store(const Node& node, Expr element) {
  Value* value = node.result();
  const Evaluator::Stored place = place_of(node);
  if (place.place)
    evaluator_.block().push_back(loop::Store::make(context_.arena, place.buffer,
                                                   {evaluator_.nest_expr(*place.place)}, element));
  else
    evaluator_.store(value, nodes_.position(node), element,
                     is_write_only(*value) ? moves_much_ : nullptr);
}

// Whether one of these results takes the memory in which a kept value lies until then: all that the
// pass reads of it is read before.
bool Rows::replaces_kept(const std::vector<const Node*>& stores) const {
  return std::any_of(stores.begin(), stores.end(), [this](const Node* node) {
    return std::any_of(kept_.begin(), kept_.end(),
                       [&](const Kept& one) { return one.output == node->result(); });
  });
}

void Rows::emit_stores(const std::vector<const Node*>& stores) {
  if (!replaces_kept(stores)) {
    for (const Node* node : stores)
      emit_store(*node, evaluator_.evaluate(node->result(), nodes_.position(*node)));
    return;
  }
  const std::vector<Expr> elements = elements_of(stores);
  for (size_t i = 0; i < stores.size(); ++i) emit_store(*stores[i], elements[i]);
}

// From the next pass on, stored values are read back.
void Rows::remember(const std::vector<const Node*>& stores) {
  for (const Node* node : stores) evaluator_.define_stored(node->result(), place_of(*node));
}

void Rows::emit_store_pass(const std::vector<const Node*>& stores,
                           const std::vector<PassAxis>& axes, size_t i, Block& block) {
  Block inner;
  Block& target = axes.empty() ? block : inner;
  if (i + 1 < axes.size()) {
    emit_store_pass(stores, axes, i + 1, inner);
  } else {
    evaluator_.push(&target);
    emit_stores(stores);
    evaluator_.pop();
    remember(stores);
  }
  if (axes.empty()) return;
  loop::Arena& arena = context_.arena;
  block.push_back(loop::For::make(arena, axes[i].variable, loop::int_constant(arena, 0),
                                  loop::from_symbolic(arena, axes[i].extent), axes[i].mode,
                                  std::move(inner)));
}

// -- reductions

std::vector<Reducer> Rows::reducers_of(const std::vector<const Node*>& reductions) const {
  std::vector<Reducer> reducers;
  for (const Node* node : reductions)
    reducers.emplace_back(context_.arena, node->op(), carried_dtype(*node));
  return reducers;
}

// Stores of the pass, and what its reductions take in at the current point.
std::vector<ReducedElement> Rows::emit_elements(const Pass& pass, Block& inner) {
  evaluator_.push(&inner);
  const bool is_late = replaces_kept(pass.stores);
  const std::vector<Expr> stored = is_late ? elements_of(pass.stores) : std::vector<Expr>();
  if (!is_late) emit_stores(pass.stores);
  std::vector<ReducedElement> elements;
  for (const Node* node : pass.reductions) {
    const Index position = nodes_.read_position(*node, evaluator_.assumptions());
    Expr element = evaluator_.evaluate(node->operand(0), position);
    element = evaluator_.let(loop::Cast::make(context_.arena, carried_dtype(*node), element), "x");
    elements.push_back({element, evaluator_.index_expr(arg_dim_index(*node, position))});
  }
  for (const graph::Access& access : pass.summed) {
    const Expr element = evaluator_.evaluate(access.value, access.index);
    const DType dtype = carried_dtype(access.value->type().dtype);
    elements.push_back({evaluator_.let(loop::Cast::make(context_.arena, dtype, element), "x"),
                        loop::int_constant(context_.arena, 0)});
  }
  for (size_t i = 0; i < stored.size(); ++i) emit_store(*pass.stores[i], stored[i]);
  evaluator_.pop();
  return elements;
}

// What finds the place of the extreme that `node` finds, in the same pass; null where nothing does.
const Node* Rows::place_of_extreme(const Pass& pass, const Node& node) {
  const bool is_max = node.op() == graph::Op::kMax;
  if (!is_max && node.op() != graph::Op::kMin) return nullptr;
  const graph::Op wanted = is_max ? graph::Op::kArgMax : graph::Op::kArgMin;
  const auto dims = [](const Node& n) { return n.attr<std::vector<int64_t>>("dims"); };
  for (const Node* other : pass.reductions)
    if (other->op() == wanted && other->operand(0) == node.operand(0) && dims(*other) == dims(node))
      return other;
  return nullptr;
}

// The search for a place carries the extreme itself: nothing else need look for it.
Reduced Rows::reduce(const Pass& pass, const std::vector<PassAxis>& axes, Block& block) {
  Pass own{{}, pass.stores, pass.summed};
  for (const Node* node : pass.reductions)
    if (place_of_extreme(pass, *node) == nullptr) own.reductions.push_back(node);
  const Reduced found = reduce_all(own, axes, block);
  Reduced results;
  for (const Node* node : pass.reductions) {
    const Node* place = place_of_extreme(pass, *node);
    const auto at =
        std::find(own.reductions.begin(), own.reductions.end(), place != nullptr ? place : node);
    const std::vector<Expr>& values = found[static_cast<size_t>(at - own.reductions.begin())];
    results.push_back(place != nullptr ? std::vector<Expr>{values[0]} : values);
  }
  results.insert(results.end(), found.begin() + static_cast<std::ptrdiff_t>(own.reductions.size()),
                 found.end());
  return results;
}

Reduced Rows::reduce_all(const Pass& pass, const std::vector<PassAxis>& axes, Block& block) {
  std::vector<Reducer> reducers = reducers_of(pass.reductions);
  for (const graph::Access& access : pass.summed)
    reducers.emplace_back(context_.arena, graph::Op::kSum,
                          carried_dtype(access.value->type().dtype));
  const auto body = [&](Block& inner) { return emit_elements(pass, inner); };
  if (!axes.empty())
    return emit_reductions(context_.arena, reducers, axes, nest_.nest_axes().assumptions(), block,
                           body);
  Reduced results;  // rows of one element
  const std::vector<ReducedElement> elements = body(block);
  for (size_t r = 0; r < reducers.size(); ++r)
    results.push_back(
        reducers[r].step(reducers[r].identity(), elements[r].element, elements[r].at));
  return results;
}

void Rows::finish_reductions(const std::vector<const Node*>& reductions,
                             const std::vector<Reducer>& reducers, const Reduced& results) {
  for (size_t r = 0; r < reductions.size(); ++r) {
    const DType dtype = reductions[r]->result()->type().dtype;
    const Expr element = evaluator_.let(
        loop::Cast::make(context_.arena, dtype, reducers[r].result(results[r])), "row");
    finish_row(*reductions[r], element, false);
  }
}

}  // namespace mlcc::lower
