// Random graphs for fuzzers: small, well typed, the same for a seed on every machine.
//
// They hold pointwise ops, casts, reductions, index maps, constants, takes, updates, scans and
// contractions over static and symbolic shapes, and nothing whose result is unspecified: no integer
// division, no float that becomes an integer, no index out of range.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "graph/contraction.h"
#include "graph/graph.h"

namespace mlcc::fuzz {

struct RandomGraphOptions {
  int nodes = 12;       // about as many
  bool symbols = true;  // s0 in 2..7, s1 in 2..5
  bool reductions = true;
  bool float_reductions = true;  // sums of floats depend on the order of their terms
  bool strided_outputs = true;   // some outputs lie in memory in another order
  std::vector<DType> dtypes = {DType::kF32, DType::kF32, DType::kI32, DType::kI64, DType::kBool};
};

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, RandomGraphOptions options)
      : random_(seed), options_(std::move(options)),
        graph_(std::make_unique<graph::Graph>("seed_" + std::to_string(seed))) {}

  std::unique_ptr<graph::Graph> make() {
    if (options_.symbols) {
      graph_->add_symbol({"s0", {2, 7}, 3});
      graph_->add_symbol({"s1", {2, 5}, 4});
      // Makes both known, whatever the other inputs are.
      add_value(graph_->add_input("sizes", {DType::kF32, {s0_, s1_}, {}}));
    }
    const int inputs = 1 + draw(3);
    for (int i = 0; i < inputs; ++i) add_random_input("x" + std::to_string(i));
    while (static_cast<int>(graph_->num_nodes()) < options_.nodes) add_random_node();
    choose_outputs();
    return std::move(graph_);
  }

 private:
  using Value = graph::Value;
  using Op = graph::Op;
  using Shape = std::vector<SymExpr>;

  int draw(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool flip_coin(int percent) { return draw(100) < percent; }
  template <typename T>
  const T& pick(const std::vector<T>& all) {
    return all[static_cast<size_t>(draw(static_cast<int>(all.size())))];
  }

  static const Shape& shape_of(const Value* value) { return value->type().shape; }
  static DType dtype_of(const Value* value) { return value->type().dtype; }
  static int rank_of(const Value* value) { return static_cast<int>(shape_of(value).size()); }

  void add_value(Value* value) { values_.push_back(value); }

  SymExpr random_size() {
    if (options_.symbols && flip_coin(40)) return flip_coin(60) ? s0_ : s1_;
    static const std::vector<int64_t> kSizes = {1, 2, 3, 4, 6};
    return pick(kSizes);
  }

  std::vector<int64_t> random_order(int rank) {
    std::vector<int64_t> order(static_cast<size_t>(rank));
    for (int d = 0; d < rank; ++d) order[static_cast<size_t>(d)] = d;
    for (int d = rank - 1; d > 0; --d)
      std::swap(order[static_cast<size_t>(d)], order[static_cast<size_t>(draw(d + 1))]);
    return order;
  }

  // Strides of a dense tensor whose dimensions lie in a random order.
  std::vector<SymExpr> random_strides(const Shape& shape) {
    std::vector<SymExpr> strides(shape.size());
    SymExpr stride = 1;
    for (const int64_t dim : random_order(static_cast<int>(shape.size()))) {
      strides[static_cast<size_t>(dim)] = stride;
      stride = stride * shape[static_cast<size_t>(dim)];
    }
    return strides;
  }

  void add_random_input(std::string name) {
    Shape shape;
    const int rank = draw(4);
    for (int d = 0; d < rank; ++d) shape.push_back(random_size());
    graph::TensorType type{pick(options_.dtypes), shape, {}};
    if (flip_coin(30)) type.strides = random_strides(shape);
    add_value(graph_->add_input(std::move(name), std::move(type)));
  }

  void add_random_node() {
    Value* value = pick(values_);
    const int kind = draw(100);
    if (kind < 45)
      add_pointwise(value);
    else if (kind < 50)
      add_cast(value);
    else if (kind < 60)
      add_reduction(value);
    else if (kind < 90)
      add_index_map(value);
    else if (kind < 94)
      add_constant();
    else if (kind < 96)
      add_take(value);
    else if (kind < 97)
      add_update(value);
    else if (kind < 98)
      add_scan(value);
    else if (kind < 99)
      add_contraction(value);
    else if (flip_coin(60))
      add_attention(value);
    else
      add_attention_gradients(value);
  }

  // ---- pointwise

  static bool is_integer_division(Op op) {
    return op == Op::kDivTruncInteger || op == Op::kDivFloorInteger || op == Op::kFmod ||
           op == Op::kRemainderInteger;
  }

  static bool broadcasts(const Shape& a, const Shape& b) {
    for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
      const SymExpr& x = a[a.size() - i];
      const SymExpr& y = b[b.size() - i];
      if (!(x == y) && !x.equals_constant(1) && !y.equals_constant(1)) return false;
    }
    return true;
  }

  static Shape broadcast(const Shape& a, const Shape& b) {
    Shape result = a.size() >= b.size() ? a : b;
    const Shape& other = a.size() >= b.size() ? b : a;
    for (size_t i = 1; i <= other.size(); ++i) {
      SymExpr& size = result[result.size() - i];
      if (size.equals_constant(1)) size = other[other.size() - i];
    }
    return result;
  }

  // A value of this dtype that meets all of `shape`; a constant where there is none.
  Value* partner(DType dtype, const Shape& shape) {
    std::vector<Value*> fitting;
    for (Value* value : values_)
      if (dtype_of(value) == dtype && broadcasts(shape_of(value), shape)) fitting.push_back(value);
    if (!fitting.empty() && flip_coin(85)) return pick(fitting);
    return constant({}, dtype);
  }

  void add_pointwise(Value* value) {
    std::vector<const graph::OpInfo*> fitting;
    for (const graph::OpInfo& info : graph::all_ops())
      if (info.arity > 0 && graph::holds(info.domain, dtype_of(value)) &&
          !(is_integer_division(info.op) && is_integer(dtype_of(value))))
        fitting.push_back(&info);
    const graph::OpInfo& info = *pick(fitting);
    std::vector<Value*> operands;
    Shape shape = shape_of(value);
    for (int i = 0; i < info.arity; ++i) {
      const bool is_condition = info.rule == graph::DTypeRule::kSelect && i == 0;
      const int place_of_value = info.rule == graph::DTypeRule::kSelect ? 1 : 0;
      const DType dtype = is_condition ? DType::kBool : dtype_of(value);
      operands.push_back(i == place_of_value ? value : partner(dtype, shape));
      shape = broadcast(shape, shape_of(operands.back()));
    }
    if (shape.size() <= kMaxRank) add_value(graph_->pointwise(info.op, operands));
  }

  void add_cast(Value* value) {
    const DType dtype = pick(options_.dtypes);
    if (dtype == dtype_of(value)) return;
    if (is_float(dtype_of(value)) && is_integer(dtype)) return;  // out of range is unspecified
    add_value(graph_->cast(value, dtype));
  }

  // ---- reductions

  void add_reduction(Value* value) {
    if (!options_.reductions || rank_of(value) == 0) return;
    if (is_float(dtype_of(value)) && !options_.float_reductions) return;
    static const std::vector<Op> kOfBool = {Op::kAny, Op::kAll};
    static const std::vector<Op> kOfNumbers = {Op::kSum, Op::kProd,   Op::kMax,
                                               Op::kMin, Op::kArgMax, Op::kArgMin};
    const Op op = pick(dtype_of(value) == DType::kBool ? kOfBool : kOfNumbers);
    std::vector<int64_t> dims = random_order(rank_of(value));
    const bool is_index = op == Op::kArgMax || op == Op::kArgMin;
    dims.resize(is_index ? 1 : 1 + static_cast<size_t>(draw(rank_of(value))));
    add_value(graph_->reduce(op, value, dims, flip_coin(50)));
  }

  // ---- index maps

  void add_index_map(Value* value) {
    const int kind = draw(6);
    if (kind == 0) add_value(graph_->permute(value, random_order(rank_of(value))));
    if (kind == 1) add_expand(value);
    if (kind == 2) add_reshape(value);
    if (kind == 3) add_slice(value);
    if (kind == 4) add_flip(value);
    if (kind == 5) add_cat(value);
  }

  void add_expand(Value* value) {
    Shape shape = shape_of(value);
    for (SymExpr& size : shape)
      if (size.equals_constant(1) && flip_coin(70)) size = random_size();
    if (shape.size() < kMaxRank && flip_coin(50)) shape.insert(shape.begin(), random_size());
    add_value(graph_->expand(value, shape));
  }

  // Joins two dimensions, splits an even one, or adds or drops one of size 1.
  void add_reshape(Value* value) {
    Shape shape = shape_of(value);
    const int kind = draw(3);
    if (shape.empty() || (kind == 0 && shape.size() < kMaxRank)) {
      shape.insert(shape.begin() + draw(static_cast<int>(shape.size()) + 1), 1);
    } else if (kind == 1 && shape.size() >= 2) {
      const int dim = draw(static_cast<int>(shape.size()) - 1);
      shape[static_cast<size_t>(dim)] =
          shape[static_cast<size_t>(dim)] * shape[static_cast<size_t>(dim) + 1];
      shape.erase(shape.begin() + dim + 1);
    } else {
      const int dim = draw(static_cast<int>(shape.size()));
      const auto half = shape[static_cast<size_t>(dim)].divide_exactly(2);
      if (!half || shape.size() >= kMaxRank) return;
      shape[static_cast<size_t>(dim)] = 2;
      shape.insert(shape.begin() + dim + draw(2), *half);
    }
    add_value(graph_->reshape(value, shape));
  }

  void add_slice(Value* value) {
    if (rank_of(value) == 0) return;
    const int dim = draw(rank_of(value));
    const SymExpr& size = shape_of(value)[static_cast<size_t>(dim)];
    const auto known = size.as_constant();
    if (known && *known > 1) {
      const int64_t start = draw(static_cast<int>(*known));
      const int64_t step = 1 + draw(2);
      const int64_t longest = (*known - 1 - start) / step + 1;
      add_value(graph_->slice(value, dim, start, 1 + draw(static_cast<int>(longest)), step));
    } else if (size == s0_ || size == s1_) {
      const int64_t start = draw(2);
      add_value(graph_->slice(value, dim, start, size - 1, 1));
    }
  }

  void add_flip(Value* value) {
    if (rank_of(value) == 0) return;
    std::vector<int64_t> dims = random_order(rank_of(value));
    dims.resize(1 + static_cast<size_t>(draw(rank_of(value))));
    add_value(graph_->flip(value, dims));
  }

  void add_cat(Value* value) {
    if (rank_of(value) == 0) return;
    std::vector<Value*> fitting;
    for (Value* other : values_)
      if (dtype_of(other) == dtype_of(value) && shape_of(other) == shape_of(value))
        fitting.push_back(other);
    Value* other = pick(fitting);
    add_value(graph_->cat({value, other}, draw(rank_of(value))));
  }

  // ---- constants, take

  Value* constant(const Shape& shape, DType dtype) {
    static const std::vector<double> kReals = {0.0, -0.0, 1.0, 0.5, -2.0, 3.25, 100.0};
    if (is_float(dtype)) return graph_->full(shape, dtype, pick(kReals));
    const int64_t limit = dtype == DType::kBool ? 2 : 5;
    return graph_->full_int(shape, dtype, draw(static_cast<int>(limit)));
  }

  void add_constant() {
    const int kind = draw(3);
    const SymExpr size = random_size();
    if (kind == 0) add_value(constant({size}, pick(options_.dtypes)));
    if (kind == 1) {
      const int64_t start = draw(3);
      add_value(graph_->iota(size, DType::kI64, start, 1 + draw(2)));
    }
    if (kind == 2) add_value(graph_->size_value(size));
  }

  // Every size is at least 1, known ones may be exactly that: indices are 0, or 0 and 1 where a
  // symbol allows it.
  void add_take(Value* value) {
    if (rank_of(value) == 0) return;
    const int dim = draw(rank_of(value));
    const SymExpr& size = shape_of(value)[static_cast<size_t>(dim)];
    const bool is_long = size == s0_ || size == s1_;
    Value* index = graph_->iota(is_long ? 2 : 1, DType::kI64, 0, 1);
    if (flip_coin(30)) index = graph_->pointwise(Op::kNeg, {index});
    add_value(graph_->take(value, {index}, dim, true, "index"));
  }

  // A part of the value itself into it, at the first places of a dimension, at one place twice, or
  // counted from the end.
  void add_update(Value* value) {
    if (rank_of(value) == 0 || (is_float(dtype_of(value)) && !options_.float_reductions)) return;
    static const std::vector<std::string> kOfBool = {"set", "and", "or"};
    static const std::vector<std::string> kOfNumbers = {"set", "add", "mul", "max", "min"};
    const std::string& combine = pick(dtype_of(value) == DType::kBool ? kOfBool : kOfNumbers);
    const int dim = draw(rank_of(value));
    const SymExpr& size = shape_of(value)[static_cast<size_t>(dim)];
    const int64_t length = size == s0_ || size == s1_ ? 2 : 1;
    Value* source = graph_->slice(value, dim, 0, length, 1);
    Value* index = graph_->iota(length, DType::kI64, 0, flip_coin(50) ? 1 : 0);
    if (flip_coin(50)) {
      if (flip_coin(30)) index = graph_->pointwise(Op::kNeg, {index});
      add_value(graph_->index_put(value, {index}, source, dim, combine, false, true, "index"));
      return;
    }
    Shape shape(shape_of(value).size(), 1);
    shape[static_cast<size_t>(dim)] = length;
    index = graph_->expand(graph_->reshape(index, shape), shape_of(source));
    add_value(graph_->scatter(value, index, source, dim, combine, false, "scatter"));
  }

  void add_scan(Value* value) {
    if (rank_of(value) == 0 || dtype_of(value) == DType::kBool) return;
    static const std::vector<std::string> kCombines = {"add", "mul",    "max",
                                                       "min", "argmax", "argmin"};
    add_value(graph_->scan(value, draw(rank_of(value)), pick(kCombines)));
  }

  // Dimensions of equal size may be one axis of both operands, which is kept or summed over.
  void add_contraction(Value* lhs) {
    const DType dtype = dtype_of(lhs);
    if (dtype == DType::kBool || (is_float(dtype) && !options_.float_reductions)) return;
    std::vector<Value*> fitting;
    for (Value* value : values_)
      if (dtype_of(value) == dtype) fitting.push_back(value);
    Value* rhs = pick(fitting);
    struct Axis {
      SymExpr extent;
      int lhs_dim, rhs_dim;  // -1: none
    };
    std::vector<Axis> axes;
    for (int d = 0; d < rank_of(lhs); ++d)
      axes.push_back({shape_of(lhs)[static_cast<size_t>(d)], d, -1});
    for (int d = 0; d < rank_of(rhs); ++d) {
      const SymExpr& size = shape_of(rhs)[static_cast<size_t>(d)];
      const auto same = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) {
        return axis.rhs_dim < 0 && axis.extent == size;
      });
      if (same != axes.end() && flip_coin(80))
        same->rhs_dim = d;
      else
        axes.push_back({size, -1, d});
    }
    std::vector<Axis> kept, reduced;
    for (const int64_t i : random_order(static_cast<int>(axes.size()))) {
      const Axis& axis = axes[static_cast<size_t>(i)];
      const bool is_shared = axis.lhs_dim >= 0 && axis.rhs_dim >= 0;
      (is_shared && flip_coin(75) ? reduced : kept).push_back(axis);
    }
    if (kept.size() > kMaxRank) return;
    Shape shape, extents;
    for (const Axis& axis : kept) shape.push_back(axis.extent);
    for (const Axis& axis : reduced) extents.push_back(axis.extent);
    kept.insert(kept.end(), reduced.begin(), reduced.end());
    Shape left(shape_of(lhs).size()), right(shape_of(rhs).size());
    for (size_t i = 0; i < kept.size(); ++i) {
      const SymExpr axis = SymExpr::symbol(graph::axis_name(i));
      if (kept[i].lhs_dim >= 0) left[static_cast<size_t>(kept[i].lhs_dim)] = axis;
      if (kept[i].rhs_dim >= 0) right[static_cast<size_t>(kept[i].rhs_dim)] = axis;
    }
    add_value(graph_->contract(lhs, rhs, left, right, extents, shape, dtype));
  }

  std::vector<Value*> values_like(const Value* value) const {
    std::vector<Value*> alike;
    for (Value* other : values_)
      if (dtype_of(other) == dtype_of(value) && shape_of(other) == shape_of(value))
        alike.push_back(other);
    return alike;
  }

  // Of a batch of matrices: the first axes, then the two given.
  static Shape index_of_matrix(size_t rank, size_t rows, size_t columns) {
    Shape at;
    for (size_t d = 0; d + 2 < rank; ++d) at.push_back(SymExpr::symbol(graph::axis_name(d)));
    at.push_back(SymExpr::symbol(graph::axis_name(rows)));
    at.push_back(SymExpr::symbol(graph::axis_name(columns)));
    return at;
  }

  // Of keys that a query, which stands at axis `rows`, sees.
  Shape random_range(size_t rows, const SymExpr& keys) {
    const SymExpr row = SymExpr::symbol(graph::axis_name(rows));
    const SymExpr first = flip_coin(30) ? SymExpr::max(row - 2, 0) : SymExpr(0);
    return {first, flip_coin(50) ? SymExpr::min(row + 1, keys) : keys};
  }

  Op pick_norm() {
    if (flip_coin(50)) return Op::kLogSumExp;
    return flip_coin(50) ? Op::kLargestScore : Op::kScoreSum;
  }

  // A value attends to itself, along its last but one dimension.
  void add_attention(Value* value) {
    const DType dtype = dtype_of(value);
    const size_t rank = shape_of(value).size();
    if ((dtype != DType::kF32 && dtype != DType::kF64) || rank < 2 || !options_.float_reductions)
      return;
    const std::vector<Value*> alike = values_like(value);
    const Shape shape = shape_of(value);
    const SymExpr keys = shape[rank - 2];
    // The axes are those of the result, and one behind them.
    const auto index = [&](size_t rows, size_t columns) {
      return index_of_matrix(rank, rows, columns);
    };
    Shape of_scores = shape;
    of_scores.back() = keys;
    Value* scores = graph_->contract(value, pick(alike), index(rank - 2, rank),
                                     index(rank - 1, rank), {shape.back()}, of_scores, dtype);
    if (Value* other = partner(dtype, of_scores); flip_coin(70)) {
      Value* scaled = graph_->pointwise(Op::kMul, {scores, other});
      if (shape_of(scaled) == of_scores) scores = scaled;
    }
    const Shape range = random_range(rank - 2, keys);
    const bool empty_is_zero = flip_coin(50);
    Value* values = pick(alike);
    Value* factors = flip_coin(30) ? partner(dtype, of_scores) : nullptr;
    if (factors != nullptr && shape_of(factors) != of_scores) factors = nullptr;
    add_value(graph_->attend(scores, values, factors, index(rank - 2, rank), index(rank, rank - 1),
                             keys, range, empty_is_zero, shape, dtype));
    of_scores.pop_back();
    if (flip_coin(40))
      add_value(graph_->score_norm(pick_norm(), scores, index(rank - 2, rank - 1), keys, range,
                                   empty_is_zero, of_scores));
  }

  // What three alike values get from a value's products with another one, as weights and gradients
  // of scores.
  void add_attention_gradients(Value* value) {
    const DType dtype = dtype_of(value);
    const Shape shape = shape_of(value);
    const size_t rank = shape.size();
    if ((dtype != DType::kF32 && dtype != DType::kF64) || rank < 2 || !options_.float_reductions)
      return;
    const std::vector<Value*> alike = values_like(value);
    Shape of_scores = shape;
    of_scores.back() = shape[rank - 2];
    const auto products = [&] {
      return graph_->contract(value, pick(alike), index_of_matrix(rank, rank - 2, rank),
                              index_of_matrix(rank, rank - 1, rank), {shape.back()}, of_scores,
                              dtype);
    };
    Value* weights = graph_->pointwise(Op::kTanh, {products()});
    Value* gradients = flip_coin(70) ? graph_->pointwise(Op::kMul, {weights, products()}) : weights;
    // One draw a statement: compilers evaluate arguments in different orders.
    Value* means = pick(alike);
    Value* queries = pick(alike);
    Value* others = pick(alike);
    const Shape range = random_range(rank - 2, of_scores.back());
    add_value(graph_->attend_gradients(weights, gradients, means, queries, others, range));
  }

  void choose_outputs() {
    std::vector<Value*> outputs;
    for (const graph::Node* node : graph_->nodes()) {
      Value* result = node->result();
      const bool is_last = node == graph_->nodes().back();
      if (!is_last && !(result->users().empty() && flip_coin(60)) && !flip_coin(5)) continue;
      outputs.push_back(result);
      if (options_.strided_outputs && flip_coin(20))
        graph_->set_strides(result, random_strides(shape_of(result)));
    }
    graph_->set_outputs(outputs);
  }

  static constexpr size_t kMaxRank = 4;

  std::mt19937_64 random_;  // the same numbers with every standard library
  RandomGraphOptions options_;
  std::unique_ptr<graph::Graph> graph_;
  std::vector<Value*> values_;
  SymExpr s0_ = SymExpr::symbol("s0");
  SymExpr s1_ = SymExpr::symbol("s1");
};

inline std::unique_ptr<graph::Graph> random_graph(uint64_t seed, RandomGraphOptions options = {}) {
  return RandomGraph(seed, std::move(options)).make();
}

}  // namespace mlcc::fuzz
