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

#include "graph/index_map.h"
#include "loop/ir.h"
#include "lower/axes/nest_axes.h"
#include "lower/axes/recording.h"
#include "lower/context.h"
#include "lower/element/formula.h"
#include "lower/kernel_buffers.h"

namespace mlcc::lower {

class Evaluator {
 public:
  // `axes` null: the recording run, into `recording`.
  // `domain`: the extents of the axes that indices are over.
  Evaluator(const Context& context, KernelBuffers& buffers, const std::vector<SymExpr>& domain,
            const NestAxes* axes, Recording* recording);

  // The value's element at `index`, computed by statements appended to the current block.
  loop::Expr evaluate(graph::Value* value, const std::vector<SymExpr>& index);
  // The operands' element(s) that node (at `position`) needs: the result of a pointwise node, cat,
  // take, gather or copy.
  loop::Expr evaluate_node(const graph::Node& node, const std::vector<SymExpr>& position);
  void store(graph::Value* value, const std::vector<SymExpr>& position, loop::Expr element,
             loop::Expr streams = nullptr);
  // Where an element of a value that the kernel writes lies in its buffer.
  loop::Expr stored_offset(graph::Value* value, const std::vector<SymExpr>& position);
  // A part [begin, end) of an axis of the nest: code that is emitted until it is left runs there
  // only, and is made for it. At most one for each axis.
  struct Segment {
    std::string axis;
    SymExpr begin, end;
  };
  void enter(Segment segment) { segments_.push_back(std::move(segment)); }
  void leave_segment() { segments_.pop_back(); }
  // The element of operand 0 that a gather or an update means at `position` (of its result, of its
  // source): looks up the index and checks it.
  std::vector<SymExpr> indexed_position(const graph::Node& node,
                                        const std::vector<SymExpr>& position);
  loop::Expr let(loop::Expr e, std::string_view base);
  loop::Expr index_expr(const SymExpr& over_domain);  // mapped to the nest's axes
  // An expression over the nest's axes, each as the loop variable that stands for it now.
  loop::Expr nest_expr(const SymExpr& over_nest) const;
  void bind_axis(const std::string& axis, const loop::Variable* variable) {
    axis_variables_[axis] = variable;
  }
  // What the places along several axes come to when these are counted as one, `place` over them.
  void bind_joined(std::vector<std::string> axes, SymExpr place, const loop::Variable* variable) {
    joined_ = {std::move(axes), std::move(place), variable};
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

  // What is defined so far, to be gone back to where code is emitted a second time.
  struct Definitions {
    std::unordered_map<const graph::Value*, loop::Expr> rows;
    std::unordered_map<const graph::Value*, Stored> stored;
  };
  Definitions definitions() const { return {rows_, stored_}; }
  void restore(Definitions definitions) {
    rows_ = std::move(definitions.rows);
    stored_ = std::move(definitions.stored);
  }

  // From now on loads of the value at `offset` (over the nest's axes) come from there, unless
  // masked.
  void define_tile(const graph::Value* value, SymExpr offset, Stored stored) {
    tiles_.push_back({value, std::move(offset), std::move(stored)});
  }

  // The number that a pad or a constant is filled with.
  loop::Expr number(const graph::Node& node);

  KernelBuffers& buffers() { return buffers_; }
  const Assumptions& assumptions() const { return assumptions_; }
  // That a loop's variable, by which places are told, lies in [0, extent).
  void assume_index(std::string_view variable, const SymExpr& extent) {
    assumptions_.set_index(variable, extent);
  }

 private:
  struct Key {
    const graph::Value* value;
    std::vector<SymExpr> index;
    loop::Expr mask;
    bool operator<(const Key& other) const;
  };

  loop::Expr compute(graph::Value* value, const std::vector<SymExpr>& index);
  int64_t elements_accessed(bool is_store) const;
  SymExpr offset_of(const graph::Value& value, const std::vector<SymExpr>& index,
                    bool is_store) const;
  loop::Expr word(const graph::Node& node, std::vector<SymExpr> position);
  loop::Expr load_value(graph::Value* value, const std::vector<SymExpr>& index);
  loop::Expr pointwise(const graph::Node& node, const std::vector<SymExpr>& index);
  SymExpr mapped(const SymExpr& over_domain) const;
  SymExpr with_joined(const SymExpr& over_nest) const;
  bool is_cut(const SymExpr& over_nest) const;
  template <typename Function>
  auto in_segments(SymExpr over_nest, const Function& function) const;
  std::optional<bool> is_between(const SymExpr& at, const SymExpr& begin, const SymExpr& end) const;
  loop::Expr between(const SymExpr& at, const SymExpr& begin, const SymExpr& end,
                     const SymExpr& extent);
  loop::Expr masked_also_by(loop::Expr condition);
  loop::Expr pad(const graph::Node& node, const std::vector<SymExpr>& index);
  void record_ends(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr cat(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr constant(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr indirect(const graph::Node& node, const std::vector<SymExpr>& index);
  loop::Expr checked_divisor(loop::Expr divisor);
  loop::Expr checked_index(const graph::Node& node, size_t place, loop::Expr element,
                           const SymExpr& extent);
  SymExpr dynamic_index(loop::Expr element, const SymExpr& extent);
  void record(const SymExpr& index, graph::Value* accessed, bool is_store);

  const fusion::FusionPlan& plan_;
  const fusion::Group& group_;
  loop::Arena& arena_;
  const Words words_;
  KernelBuffers& buffers_;
  const NestAxes* axes_;
  Recording* recording_;
  Formulas formulas_;
  Assumptions assumptions_;  // over the domain's axes
  std::vector<loop::Block*> blocks_;
  std::vector<std::map<Key, loop::Expr>> scopes_;
  loop::Expr mask_ = nullptr;      // of the part of a cat or pad being evaluated
  std::vector<Segment> segments_;  // around the code being emitted
  std::unordered_map<const graph::Value*, loop::Expr> rows_;
  std::unordered_map<const graph::Value*, Stored> stored_;
  struct Tile {
    const graph::Value* value;
    SymExpr offset;
    Stored stored;
  };
  std::vector<Tile> tiles_;
  std::map<std::string, const loop::Variable*, std::less<>> axis_variables_;
  struct Joined {
    std::vector<std::string> axes;
    SymExpr place;
    const loop::Variable* variable = nullptr;
  };
  Joined joined_;
};

// What a run without loops yet comes to, whose code is thrown away.
Recording record(const Context& context, const std::vector<SymExpr>& domain,
                 const std::function<void(Evaluator&, loop::Block&)>& run);

// The same of evaluating a value at an index over the group's domain.
Recording record_value(const Context& context, graph::Value* value,
                       const std::vector<SymExpr>& index);

}  // namespace mlcc::lower
