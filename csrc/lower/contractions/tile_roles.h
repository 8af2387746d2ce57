// Which axis of a contraction does what in its tiles: columns along the operand that is read in
// vectors, rows along the one whose elements are broadcast, depth along the reduced axes.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "lower/axes/nest_axes.h"
#include "lower/context.h"
#include "schedule/contraction.h"

namespace mlcc::lower {

class TileRoles {
 public:
  // `indices`: what is read and written beside the contraction, over the domain. `lanes`: columns
  // of a vector; 0: no tiles are wanted.
  TileRoles(const Context& context, const graph::Node& contraction, std::vector<SymExpr> indices,
            int64_t lanes);

  // Where an element of an operand lies: of its base, over the nest's axes; `in_panels`: the same
  // where the panel and the place in it stand for the column of the packed operand.
  struct Operand {
    graph::Value* base;
    SymExpr offset, in_panels;
  };
  const Operand& operand(size_t i) const { return operands_[i]; }
  const NestAxes& axes() const { return *axes_; }

  // Whether the operands lie such that tiles can be contracted; what follows has a meaning then
  // only.
  bool has_tiles() const { return columns_ != nullptr; }
  size_t vector() const { return vector_; }
  size_t broadcast() const { return 1 - vector_; }
  // Whether the vector operand lies in panels of a tile's columns, the last one padded.
  bool is_packed() const { return is_packed_; }
  // Whether the kernel computes that operand, panel by panel.
  bool is_computed() const { return is_computed_; }
  // Whether all there is to compute is a cast of bytes that lie so in memory, which tiles can make
  // themselves; and that they are to, whatever the number of rows.
  bool may_convert() const { return may_convert_; }
  void convert_in_tiles() { is_computed_ = false; }
  // Whether groups of terms have scales (contract_groups): depth begins with that axis then. And
  // whether two elements of the operand of columns stand in a byte.
  bool has_groups() const { return has_groups_; }
  bool has_nibbles() const { return has_nibbles_; }
  // Columns of a panel that lie side by side: all of them where `count` is 0.
  struct Run {
    int64_t first = 0, count = 0;
  };
  // An index over the domain's axes at a column of a panel: `place` counts columns of the run, and
  // the terms of a word inside of them.
  std::vector<SymExpr> index_in_panel(std::vector<SymExpr> index, const SymExpr& panel,
                                      const Run& run, const SymExpr& place,
                                      int64_t terms = 1) const;
  bool is_along_columns(const std::vector<SymExpr>& index) const;
  const schedule::Axis& columns() const { return *columns_; }
  int64_t vectors() const { return vectors_; }          // of a tile's columns
  const schedule::Axis* rows() const { return rows_; }  // null: the broadcast operand has one row
  const std::vector<const schedule::Axis*>& depth() const { return depth_; }
  // Where instructions multiply several terms, of which the sum's length is no multiple, depth is
  // whole words, and the terms of one; so many terms are left over, the first ones of a last word.
  SymExpr terms_left() const { return terms_left_; }
  // Lets rows go on in the next image row, where that leaves fewer rows over: `computed` tells how
  // many are, of so many. Row r is then the r-th pixel. Unless it `may_jump`, only where the next
  // image row follows without a gap.
  void join_rows(const std::function<int64_t(int64_t)>& computed, bool may_jump);
  bool has_joined_rows() const { return row_parts_.size() > 1; }
  // The axes that rows are made of: none, one, or two that are joined.
  const std::vector<const schedule::Axis*>& row_parts() const { return row_parts_; }
  // How far behind the row `first` the row `first + row` begins in the broadcast operand; `within`:
  // the place of `first` in its image row.
  SymExpr row_offset(const SymExpr& within, int64_t row) const;
  // And how much farther than a step away the first pixel of the next image row begins.
  SymExpr jump() const;
  // Whether in memory it follows without a gap, so that rows are joined for what is written alone.
  bool has_gapless_rows() const { return has_joined_rows() && jump().equals_constant(0); }
  // Of the other axes, those along which the vector operand does not move: its tiles are multiplied
  // with all of their rows. And those along which it does: products of their own.
  std::vector<const schedule::Axis*> shared_outer() const;
  std::vector<const schedule::Axis*> separate_outer() const;
  SymExpr column_step() const { return column_step_; }
  // How far apart an operand's elements are along an axis of rows or depth.
  SymExpr step(size_t operand, const schedule::Axis& axis) const;
  // Where a tile begins in an operand, at depth 0.
  SymExpr origin(size_t operand, const SymExpr& row, const SymExpr& column,
                 const SymExpr& panel) const;

 private:
  struct Packing {
    size_t operand;
    size_t axis;  // of the domain
    int64_t vectors;
  };
  struct Cut {
    size_t axis = 0;    // of the domain
    int64_t terms = 1;  // 1: it is not cut
  };
  int64_t vectors_of(const SymExpr& columns) const;
  std::optional<Packing> find_packing(const graph::Node& contraction) const;
  static Cut find_cut(const graph::Node& contraction, size_t operand);
  void find_roles();
  bool has_whole_groups(const graph::Node& contraction) const;
  bool find_columns();
  bool are_steps_known() const;
  std::vector<const schedule::Axis*> outer_of(bool is_shared) const;
  std::optional<SymExpr> find_step(size_t operand, const schedule::Axis& axis) const;
  SymExpr jump_between(const schedule::Axis& outer, const schedule::Axis& inner) const;

  const Context& context_;
  std::vector<Operand> operands_;
  std::optional<NestAxes> axes_;
  size_t vector_ = 1;
  bool is_packed_ = false;
  size_t packed_axis_ = 0;  // of the domain
  bool is_computed_ = false, may_convert_ = false;
  bool has_groups_ = false, has_nibbles_ = false;
  int64_t lanes_;
  int64_t vectors_ = schedule::kVectorsOfTile;
  SymExpr packed_column_;  // the domain's axis of the packed columns, over the nest's axes
  SymExpr first_panel_;    // where the axis of columns is a part of that
  SymExpr column_step_ = 1;
  std::vector<schedule::Axis> words_;  // instead of the reduced axis: words and terms, or nothing
  SymExpr terms_left_ = 0;
  const schedule::Axis* columns_ = nullptr;
  const schedule::Axis* rows_ = nullptr;
  std::optional<schedule::Axis> joined_;  // rows_, where they are
  std::vector<const schedule::Axis*> row_parts_, depth_, outer_;
};

// The bytes that a product's operand of columns is a cast of, if it is no more than that.
graph::Value* bytes_behind(const graph::Node& product, size_t operand);

}  // namespace mlcc::lower
