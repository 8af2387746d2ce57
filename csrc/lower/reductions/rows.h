// What a kernel does for each point of the kept axes: passes over the row of reduced axes, one for
// each level of reductions, and between them the values that a whole row has once.
#pragma once

#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "loop/ir.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/loops/nest.h"
#include "lower/loops/reduction.h"
#include "lower/reductions/online.h"
#include "lower/reductions/pieces.h"

namespace mlcc::lower {

class Rows {
 public:
  // `most_elements`: of a row whose length is a symbol, where the caller asks for it first; 0: it
  // does not.
  Rows(const Context& context, const GroupNodes& nodes, Nest& nest, Evaluator& evaluator,
       int64_t most_elements = 0);

  // Everything.
  void emit(loop::Block& block);
  // The partial results of a piece; and, from those of all pieces, the rest.
  void emit_piece(const Pieces& pieces, loop::Block& block);
  void emit_combined(const Pieces& pieces, loop::Block& block);
  // What a piece carries.
  std::vector<Reducer> piece_reducers() const;
  // Whether reductions of several levels share a pass.
  bool is_online() const { return online_.has_value(); }
  // How many values are kept from one pass to the next.
  size_t num_kept() const { return kept_.size(); }
  // The levels at which they are computed, added up: of as many values, those of lower levels spare
  // more passes.
  int kept_levels() const;
  // Whether outputs hold some of them: what is written there does not go past the caches.
  bool keeps_in_outputs() const;
  // The buffers among them are the nest's from now on.
  void add_row_buffers();

 private:
  struct Pass {
    std::vector<const graph::Node*> reductions, stores;
    std::vector<graph::Access> summed;  // besides: values that are summed up
  };
  // A value kept between passes: in a buffer for one row, or in the memory of an output that a
  // later pass writes.
  struct Kept {
    const graph::Value* value;
    const loop::Buffer* row;
    graph::Value* output;
  };

  loop::Expr find_moves_much() const;
  bool is_write_only(const graph::Value& value) const;
  void choose_kept();
  const loop::Buffer* make_row_buffer(const graph::Value& value, int64_t& elements);
  graph::Value* later_output(const graph::Node& node, int last_use) const;
  bool passes_stay_close() const;
  int64_t most_row_elements() const;
  bool is_computed_again(const graph::Value& value) const;
  int64_t expression_ops(const graph::Node& node) const;
  const Kept* kept(const graph::Value* value) const;
  Evaluator::Stored place_of(const graph::Node& node);

  void choose_online();
  bool has_few_columns() const;
  void emit_levels(int first, loop::Block& block);
  Reduced reduce_online(const Pieces* piece, loop::Block& block);
  void finish_online(const Reduced& results, loop::Block& block);
  void emit_level(int level, const Pieces* piece, loop::Block& block);
  void emit_rows(int level, bool is_piece);
  void finish_row(const graph::Node& node, loop::Expr element, bool is_piece);
  Pass pass_of(int level) const;
  std::vector<loop::Expr> elements_of(const std::vector<const graph::Node*>& stores);
  void emit_store(const graph::Node& node, loop::Expr element);
  bool replaces_kept(const std::vector<const graph::Node*>& stores) const;
  void emit_stores(const std::vector<const graph::Node*>& stores);
  void remember(const std::vector<const graph::Node*>& stores);
  void emit_store_pass(const std::vector<const graph::Node*>& stores,
                       const std::vector<PassAxis>& axes, size_t i, loop::Block& block);
  std::vector<ReducedElement> emit_elements(const Pass& pass, loop::Block& inner);
  static const graph::Node* place_of_extreme(const Pass& pass, const graph::Node& node);
  Reduced reduce(const Pass& pass, const std::vector<PassAxis>& axes, loop::Block& block);
  Reduced reduce_all(const Pass& pass, const std::vector<PassAxis>& axes, loop::Block& block);
  std::vector<Reducer> reducers_of(const std::vector<const graph::Node*>& reductions) const;
  void finish_reductions(const std::vector<const graph::Node*>& reductions,
                         const std::vector<Reducer>& reducers, const Reduced& results);

  const Context& context_;
  const GroupNodes& nodes_;
  Nest& nest_;
  Evaluator& evaluator_;
  const int64_t most_elements_;
  loop::Expr moves_much_ = nullptr;                    // null: no
  std::unordered_set<const graph::Value*> read_back_;  // by a later pass
  std::vector<Kept> kept_;                             // in program order
  std::optional<Online> online_;                       // takes the place of the first levels
};

}  // namespace mlcc::lower
