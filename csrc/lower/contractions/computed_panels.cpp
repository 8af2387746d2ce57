#include "lower/contractions/computed_panels.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "graph/contraction.h"
#include "graph/index_map.h"

namespace mlcc::lower {

using graph::PanelDims;
using loop::Block;
using schedule::Axis;

namespace {

// A column and term of a panel while streams are looked for.
constexpr const char* kPlace = "place";
// How far ahead terms are asked for, and what groups of them have in common: no prefetcher goes on
// while tiles multiply (decision 0043).
constexpr int64_t kBytesAhead = 8192, kBytesOfGroupsAhead = 2048;

constexpr int64_t kLineBytes = 64;  // of a cache

// Sums that a row has for each column at most, to which products go in turns: that many are under
// way at the same time.
constexpr int64_t kMostTurns = 4;

// The terms of a panel, and the columns of each.
class PanelTerms {
 public:
  PanelTerms(ContractionNest& nest, size_t product, const SymExpr& panel,
             const std::vector<DepthAxis>& depth)
      : nest_(nest), roles_(nest.roles()), number_(product),
        product_(*nest.stages().products()[product]), panel_(panel), depth_(depth),
        run_(graph::columns_of_run(*product_.operand(roles_.vector()))),
        streams_(streams_of(value(), index())) {}

 protected:
  // What is made for a group of words and for a word of terms, whose place in an operand is told.
  using OfGroup = std::function<void(const SymExpr& at, Block&)>;
  using OfWord = std::function<void(int64_t turn, const SymExpr& at, Block&)>;
  using OfColumns = std::function<void(const SymExpr& column, loop::Expr element, Block&)>;

  graph::Value& value() const { return *product_.operand(roles_.vector()); }

  const std::vector<SymExpr>& index() const {
    return graph::index_of_operand(product_, roles_.vector());
  }

  // The terms of a word lie side by side inside of the columns, and are written with them.
  int64_t terms_of_word() const { return *roles_.column_step().as_constant(); }

  // Axes of depth that are not inside of a word.
  size_t num_axes() const { return depth_.size() - (terms_of_word() > 1 ? 1 : 0); }

  // Loops over the axes of depth but for the last one, of which words are made.
  Block over_groups(size_t operand, const SymExpr& at, const OfGroup& make, size_t number = 0) {
    if (number + 1 == num_axes()) {
      Block block;
      make(at, block);
      return block;
    }
    const DepthAxis& axis = depth_[number];
    const SymExpr step = roles_.step(operand, *axis.axis);
    return nest_.loop_over("k", 0, axis.extent, {}, [&](const SymExpr& place, Block& block) {
      nest_.bind(*axis.axis, axis.begin + place, block);
      append(block, over_groups(operand, at + step * place, make, number + 1));
    });
  }

  // A loop over the words of that one; an iteration makes `turns` of them.
  Block over_words(size_t operand, int64_t turns, const SymExpr& at, const OfWord& make) {
    const DepthAxis& axis = depth_[num_axes() - 1];
    const SymExpr step = roles_.step(operand, *axis.axis);
    const SymExpr count = axis.extent.divide_exactly(turns).value_or(axis.extent);
    return nest_.loop_over("k", 0, count, {}, [&](const SymExpr& place, Block& block) {
      for (int64_t turn = 0; turn < turns; ++turn) {
        const SymExpr word = place * turns + turn;
        nest_.bind(*axis.axis, axis.begin + word, block);
        append(block, requests(turn));
        make(turn, at + step * word, block);
      }
    });
  }

  // A loop over each run of columns that lie side by side.
  void over_columns(Block& block, graph::Value& matrix, const OfColumns& make) {
    const int64_t width = std::min(run_, nest_.tiles().columns / 2), terms = terms_of_word();
    const loop::LoopMode mode{loop::LoopKind::kVector, width, run_ / width * terms, 1};
    Evaluator& evaluator = nest_.evaluator();
    for (int64_t first = 0; first < nest_.tiles().columns; first += run_)
      append(block,
             nest_.loop_over("c", 0, run_ * terms, mode, [&](const SymExpr& place, Block& b) {
               evaluator.push(&b);
               evaluator.assume_index(*place.as_symbol(), run_ * terms);
               const loop::Expr element = evaluator.evaluate(
                   &matrix, roles_.index_in_panel(index(), panel_, {first, run_}, place, terms));
               make(place + first * terms, element, b);
               evaluator.pop();
             }));
  }

  // What a value at these places of a panel is made of that has no fewer elements than it.
  std::vector<Recording::MemoryAccess> streams_of(graph::Value& made,
                                                  std::vector<SymExpr> at) const {
    const int64_t runs = nest_.tiles().columns / run_;  // an element may hold a value of each
    const auto elements = product(made.type().shape).as_constant();
    at = roles_.index_in_panel(std::move(at), panel_, {}, SymExpr::symbol(kPlace), terms_of_word());
    std::vector<Recording::MemoryAccess> found;
    for (Recording::MemoryAccess& access : record_value(nest_.context(), &made, at).accesses)
      if (product(access.value->type().shape).as_constant().value_or(0) * runs >= elements)
        found.push_back(std::move(access));
    return found;
  }

  void request(const Recording::MemoryAccess& stream, int64_t place, int64_t ahead, Block& block) {
    const loop::Buffer* buffer =
        nest_.evaluator().buffers().buffer_of(stream.value, loop::Access::kIn);
    const SymExpr at = stream.offset.replaced(kPlace, place) + ahead / dtype_size(buffer->dtype);
    block.push_back(
        loop::Prefetch::make(nest_.arena(), buffer, {nest_.evaluator().index_expr(at)}));
  }

  // Of the lines that terms which stand together begin with.
  Block requests(int64_t turn) {
    Block block;
    for (const Recording::MemoryAccess& stream : streams_) {
      const int64_t size = dtype_size(stream.value->type().dtype);
      if (turn * run_ * terms_of_word() * size % kLineBytes == 0)
        request(stream, 0, kBytesAhead, block);
    }
    return block;
  }

  ContractionNest& nest_;
  const TileRoles& roles_;
  const size_t number_;
  const graph::Node& product_;
  const SymExpr panel_;
  const std::vector<DepthAxis>& depth_;
  const int64_t run_;  // columns that one loop goes along
  // What the panel is made of that is not shared by several of its terms.
  const std::vector<Recording::MemoryAccess> streams_;
};

class PanelWriter : public PanelTerms {
 public:
  using PanelTerms::PanelTerms;

  const loop::Buffer* write(Block& block) {
    const int64_t elements = nest_.tiles().columns * most_terms_of_part(nest_);
    const loop::Buffer* panel = nest_.stack("panel", value().type().dtype, elements, block);
    const auto write = [&](int64_t, const SymExpr& at, Block& b) {
      over_columns(b, value(), [&](const SymExpr& column, loop::Expr element, Block& inner) {
        nest_.store(panel, at + column, element, inner);
      });
    };
    const auto of_group = [&](const SymExpr& at, Block& b) {
      append(b, over_words(roles_.vector(), 1, at, write));
    };
    append(block, over_groups(roles_.vector(), 0, of_group));
    return panel;
  }
};

// Few rows times the panel, whose elements stay in registers.
class RowProducts : public PanelTerms {
 public:
  RowProducts(ContractionNest& nest, const TilePlace& place, const std::vector<DepthAxis>& depth)
      : PanelTerms(nest, place.product, place.panel, depth), place_(place),
        rows_(*place.rows.as_constant()), turns_(turns()), matrix_(&value()) {
    take_factor();
  }

  // Adds the products to the tile's sums.
  void add(Block& block) {
    const int64_t columns = nest_.tiles().columns;
    sums_ = nest_.stack("rows", nest_.accumulator(), rows_ * turns_ * columns, block);
    const auto multiplied = [&](const SymExpr& at, Block& b) {
      append(b, over_words(roles_.broadcast(), turns_, at,
                           [&](int64_t turn, const SymExpr& word, Block& inner) {
                             multiply(turn, word, inner);
                           }));
    };
    const auto added = [&](const SymExpr& at, Block& b) {
      append(b, requests_of_group());
      append(b, zeros());
      multiplied(at, b);
      append(b, add_sums());
    };
    if (factor_ != nullptr)
      return append(block, over_groups(roles_.broadcast(), first_term(), added));
    append(block, zeros());
    append(block, over_groups(roles_.broadcast(), first_term(), multiplied));
    append(block, add_sums());
  }

 private:
  // A row has several sums as far as there are registers for them.
  int64_t turns() const {
    const auto words = depth_[num_axes() - 1].extent.as_constant();
    const int64_t most =
        schedule::most_rows_in_registers(nest_.context().machine, roles_.vectors());
    const int64_t turns = std::clamp<int64_t>(most / rows_, 1, kMostTurns);
    return words && *words % turns == 0 ? turns : 1;
  }

  // Takes what all terms of a group are multiplied with out of the matrix, where the last axis of
  // depth goes along such terms: the sum of the group is multiplied with it.
  void take_factor() {
    const graph::Node* node = matrix_->producer();
    if (node == nullptr || node->op() != graph::Op::kMul) return;
    const SymExpr group = roles_.axes().map(index()[PanelDims::kGroups]);
    if (group.contains(depth_[num_axes() - 1].axis->name)) return;
    for (const size_t i : {0, 1}) {
      graph::Value *rest = node->operand(i), *factor = node->operand(1 - i);
      if (rest->type().shape != matrix_->type().shape || !is_of_groups(*factor)) continue;
      matrix_ = rest;
      factor_ = factor;
      return;
    }
  }

  static bool is_of_groups(const graph::Value& value) {
    const auto& shape = value.type().shape;
    const auto is_single = [&](size_t dim) { return shape[dim].equals_constant(1); };
    return shape.empty() || (shape.size() == PanelDims::kCount && is_single(PanelDims::kWords) &&
                             is_single(PanelDims::kTermsOfWord));
  }

  SymExpr first_term() const {
    const size_t operand = roles_.broadcast();
    SymExpr first = roles_.origin(operand, place_.first_row, place_.first_column, place_.panel);
    for (const DepthAxis& axis : depth_)
      first = first + roles_.step(operand, *axis.axis) * axis.begin;
    return first;
  }

  loop::LoopMode vectors() const {
    return {loop::LoopKind::kVector, nest_.tiles().columns / 2, 2, 1};
  }

  SymExpr place_of_sum(int64_t row, int64_t turn, const SymExpr& column) const {
    return (row * turns_ + turn) * nest_.tiles().columns + column;
  }

  // Vector by vector, so that all of them stay in registers.
  Block zeros() {
    Block block;
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t turn = 0; turn < turns_; ++turn)
        append(block, nest_.loop_over("c", 0, nest_.tiles().columns, vectors(),
                                      [&](const SymExpr& column, Block& b) {
                                        nest_.store(sums_, place_of_sum(row, turn, column),
                                                    nest_.zero(), b);
                                      }));
    return block;
  }

  void multiply(int64_t turn, const SymExpr& at, Block& block) {
    const loop::Buffer* operand = nest_.buffer_of(roles_.broadcast(), number_);
    const SymExpr step =
        roles_.rows() == nullptr ? SymExpr(0) : roles_.step(roles_.broadcast(), *roles_.rows());
    std::vector<loop::Expr> of_rows;
    for (int64_t row = 0; row < rows_; ++row)
      of_rows.push_back(nest_.let(nest_.load(operand, at + step * row), "x", block));
    over_columns(block, *matrix_, [&](const SymExpr& column, loop::Expr element, Block& b) {
      const loop::Expr weight = nest_.let(element, "w", b);
      for (int64_t row = 0; row < rows_; ++row) {
        const SymExpr sum = place_of_sum(row, turn, column);
        const loop::Expr x = of_rows[static_cast<size_t>(row)];
        nest_.store(sums_, sum,
                    nest_.apply(loop::ScalarOp::kFma, {x, weight, nest_.load(sums_, sum)}), b);
      }
    });
  }

  // To the tile's sums those of all turns, times the factor.
  Block add_sums() {
    const Sums& tile = place_.sums[place_.product];
    return nest_.loop_over(
        "c", 0, nest_.tiles().columns, vectors(), [&](const SymExpr& column, Block& b) {
          const loop::Expr factor = factor_ == nullptr ? nullptr : factor_at(column, b);
          for (int64_t row = 0; row < rows_; ++row) {
            loop::Expr sum = nest_.load(sums_, place_of_sum(row, 0, column));
            for (int64_t turn = 1; turn < turns_; ++turn)
              sum = nest_.apply(loop::ScalarOp::kAdd,
                                {sum, nest_.load(sums_, place_of_sum(row, turn, column))});
            const SymExpr of_tile = tile.offset + row * nest_.wide_columns() + column;
            const loop::Expr old = nest_.load(tile.buffer, of_tile);
            sum = factor == nullptr ? nest_.apply(loop::ScalarOp::kAdd, {old, sum})
                                    : nest_.apply(loop::ScalarOp::kFma, {sum, factor, old});
            nest_.store(tile.buffer, of_tile, sum, b);
          }
        });
  }

  // Of the group whose axes are bound.
  loop::Expr factor_at(const SymExpr& column, Block& block) {
    Evaluator& evaluator = nest_.evaluator();
    evaluator.push(&block);
    evaluator.assume_index(*column.as_symbol(), nest_.tiles().columns);
    const loop::Expr element =
        evaluator.evaluate(factor_, roles_.index_in_panel(index_of_factor(), panel_, {}, column));
    evaluator.pop();
    return nest_.let(element, "factor", block);
  }

  std::vector<SymExpr> index_of_factor() const {
    return graph::broadcast_index(factor_->type().shape, index());
  }

  // Of the lines of what the group has for its columns.
  Block requests_of_group() {
    Block block;
    if (product(factor_->type().shape).as_constant().value_or(0) < nest_.tiles().columns)
      return block;
    for (const Recording::MemoryAccess& stream : streams_of(*factor_, index_of_factor())) {
      const int64_t of_line = kLineBytes / dtype_size(stream.value->type().dtype);
      for (int64_t first = 0; first < nest_.tiles().columns; first += of_line)
        request(stream, first, kBytesOfGroupsAhead, block);
    }
    return block;
  }

  const TilePlace& place_;
  const int64_t rows_, turns_;
  graph::Value* matrix_;
  graph::Value* factor_ = nullptr;
  const loop::Buffer* sums_ = nullptr;  // of rows, turns and columns
};

}  // namespace

bool multiplies_few_rows(const ContractionNest& nest) {
  const TileRoles& roles = nest.roles();
  const auto rows = nest.all_rows().as_constant();
  const int64_t most = schedule::most_rows_in_registers(nest.context().machine, roles.vectors());
  return roles.is_computed() && roles.column_step().equals_constant(1) && rows && *rows <= most &&
         !roles.has_joined_rows() && nest.tiles().rows == std::vector<int64_t>{*rows};
}

void add_products_of_rows(ContractionNest& nest, const TilePlace& place,
                          const std::vector<DepthAxis>& depth, Block& block) {
  RowProducts(nest, place, depth).add(block);
}

const loop::Buffer* compute_panel(ContractionNest& nest, size_t product, const SymExpr& panel,
                                  const std::vector<DepthAxis>& depth, Block& block) {
  return PanelWriter(nest, product, panel, depth).write(block);
}

}  // namespace mlcc::lower
