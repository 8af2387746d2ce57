// Scalar code for one element of a value: follows index maps, inlined nodes and the group's own
// nodes down to loads.
//
// Indices are over the axes of the group's domain; every index that reaches memory passes through
// `NestAxes::map`. The same evaluator runs twice: first to record the indices (with no axes yet),
// then to emit the nest.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fusion/fusion.h"
#include "graph/index_map.h"
#include "loop/ir.h"
#include "lower/formula.h"
#include "lower/nest_axes.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

// What the recording run learns.
struct Recording {
  struct MemoryAccess {
    SymExpr offset;
    int64_t element_bytes;
    bool is_store;
    graph::Value* value;
    bool is_masked;
  };
  std::vector<MemoryAccess> accesses;
  std::vector<SymExpr> indices;  // every index expression, also those of constants and masks
  int64_t ops = 0;
  int64_t widest_bytes = 1;
};

class Evaluator {
 public:
  // `axes` null: the recording run, into `recording`.
  Evaluator(const graph::Graph& graph, const fusion::FusionPlan& plan, const fusion::Group& group,
            const schedule::Machine& machine, loop::Arena& arena, const NestAxes* axes,
            Recording* recording);

  // The value's element at `index`, computed by statements appended to the current block.
  loop::Expr evaluate(graph::Value* value, const std::vector<SymExpr>& index);
  // The operands' element(s) that node (at `position`) needs: the result of a pointwise node, cat,
  // take, gather or copy.
  loop::Expr evaluate_node(const graph::Node& node, const std::vector<SymExpr>& position);
  void store(graph::Value* value, const std::vector<SymExpr>& position, loop::Expr element);
  loop::Expr let(loop::Expr e, std::string_view base);
  loop::Expr index_expr(const SymExpr& over_domain);  // mapped to the nest's axes
  // An expression over the nest's axes, each as the loop variable that stands for it now.
  loop::Expr nest_expr(const SymExpr& over_nest) const;
  void bind_axis(const std::string& axis, const loop::Variable* variable) {
    axis_variables_[axis] = variable;
  }

  // -- the current place
  loop::Block& block() { return *blocks_.back(); }
  // Statements go to `block` until pop; values computed there are forgotten then.
  void push(loop::Block* block);
  void pop();

  // -- values of the group that need no computation any more
  void define_row(const graph::Value* value, loop::Expr element) { rows_[value] = element; }
  // From now on the value's elements are read from this buffer (its own output, or a row buffer).
  struct Stored {
    const loop::Buffer* buffer;
    std::optional<SymExpr> place;  // over the nest's axes; nothing: by the value's own strides
  };
  void define_stored(const graph::Value* value, Stored stored) {
    stored_[value] = std::move(stored);
  }

  // What the kernel gets by value is no `in` buffer but a `value`.
  // From now on loads of the value at `offset` (over the nest's axes) come from there, unless
  // masked.
  void define_tile(const graph::Value* value, SymExpr offset, Stored stored) {
    tiles_.push_back({value, std::move(offset), std::move(stored)});
  }

  const loop::Buffer* buffer_of(graph::Value* value, loop::Access access);
  const std::vector<graph::Value*>& buffer_values() const { return buffer_values_; }
  const std::vector<const loop::Buffer*>& buffers() const { return buffers_; }
  const std::vector<loop::ErrorText>& errors() const { return errors_; }
  const Assumptions& assumptions() const { return assumptions_; }

 private:
  struct Key {
    const graph::Value* value;
    std::vector<SymExpr> index;
    loop::Expr mask;
    bool operator<(const Key& other) const;
  };

  loop::Expr compute(graph::Value* value, const std::vector<SymExpr>& index);
  bool is_host_number(const graph::Value& value) const;
  loop::Expr load_value(graph::Value* value, const std::vector<SymExpr>& index);
  loop::Expr pointwise(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr between(loop::Expr at, const SymExpr& begin, const SymExpr& end,
                     const SymExpr& extent);
  loop::Expr cat(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr constant(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr indirect(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr checked_divisor(loop::Expr divisor);
  loop::Expr checked_index(const graph::Node& node, loop::Expr element, const SymExpr& extent);
  SymExpr dynamic_index(loop::Expr element, const SymExpr& extent);
  int64_t error_code(const std::string& exception, const std::string& text);
  void record(const SymExpr& index, graph::Value* accessed, bool is_store);

  const graph::Graph& graph_;
  const fusion::FusionPlan& plan_;
  const fusion::Group& group_;
  const schedule::Machine& machine_;
  loop::Arena& arena_;
  const NestAxes* axes_;
  Recording* recording_;
  Formulas formulas_;
  Assumptions assumptions_;  // over the domain's axes
  std::vector<loop::Block*> blocks_;
  std::vector<std::map<Key, loop::Expr>> scopes_;
  loop::Expr mask_ = nullptr;  // of the part of a cat being evaluated
  std::unordered_map<const graph::Value*, loop::Expr> rows_;
  std::unordered_map<const graph::Value*, Stored> stored_;
  struct Tile {
    const graph::Value* value;
    SymExpr offset;
    Stored stored;
  };
  std::vector<Tile> tiles_;
  std::map<std::string, const loop::Variable*, std::less<>> axis_variables_;
  std::unordered_map<const graph::Value*, const loop::Buffer*> buffer_of_;
  std::vector<graph::Value*> buffer_values_;
  std::vector<const loop::Buffer*> buffers_;
  std::vector<loop::ErrorText> errors_;
};

}  // namespace mlcc::lower
