#include "lower/contractions/computed_panels.h"

#include <algorithm>
#include <functional>

#include "graph/contraction.h"

namespace mlcc::lower {

using loop::Block;
using schedule::Axis;

namespace {

// A column and term of a panel while streams are looked for.
constexpr const char* kPlace = "place";
// How far ahead terms are asked for: no prefetcher goes on while tiles multiply (decision 0043).
constexpr int64_t kBytesAhead = 4096;

// Sums that a row's products go to in turns: so many may be under way at the same time.
constexpr int64_t kSumsOfRow = 4;

class PanelWriter {
 public:
  PanelWriter(ContractionNest& nest, size_t product, const SymExpr& panel,
              const std::vector<DepthAxis>& depth)
      : nest_(nest), roles_(nest.roles()), number_(product),
        product_(*nest.stages().products()[product]), panel_(panel), depth_(depth),
        run_(graph::columns_of_run(*product_.operand(roles_.vector()))) {
    find_streams();
  }

  const loop::Buffer* write(Block& block) {
    const int64_t elements = nest_.tiles().columns * most_terms_of_part(nest_);
    const loop::Buffer* panel = nest_.stack("panel", value().type().dtype, elements, block);
    append(block, over_terms(roles_.vector(), 1, 0, [&](int64_t, const SymExpr& at, Block& b) {
             over_columns(b, [&](const SymExpr& column, loop::Expr element, Block& inner) {
               nest_.store(panel, at + column, element, inner);
             });
           }));
    return panel;
  }

  // Adds the products of one row to its sums.
  void multiply(const TilePlace& place, Block& block) {
    const int64_t columns = nest_.tiles().columns, turns = turns_of_row();
    const loop::Buffer* sums = nest_.stack("row", nest_.accumulator(), turns * columns, block);
    const loop::LoopMode vectors{loop::LoopKind::kVector, columns / 2, 2, 1};
    append(block,
           nest_.loop_over("c", 0, turns * columns, vectors, [&](const SymExpr& at, Block& b) {
             nest_.store(sums, at, nest_.zero(), b);
           }));
    const loop::Buffer* row = nest_.buffer_of(roles_.broadcast(), number_);
    SymExpr first =
        roles_.origin(roles_.broadcast(), place.first_row, place.first_column, place.panel);
    for (const DepthAxis& axis : depth_)
      first = first + roles_.step(roles_.broadcast(), *axis.axis) * axis.begin;
    append(block,
           over_terms(
               roles_.broadcast(), turns, first, [&](int64_t turn, const SymExpr& at, Block& b) {
                 const loop::Expr factor = nest_.let(nest_.load(row, at), "x", b);
                 over_columns(b, [&](const SymExpr& column, loop::Expr element, Block& inner) {
                   const SymExpr sum = turn * columns + column;
                   const loop::Expr added =
                       nest_.apply(loop::ScalarOp::kFma, {factor, element, nest_.load(sums, sum)});
                   nest_.store(sums, sum, added, inner);
                 });
               }));
    const Sums& all = place.sums[place.product];
    append(block, nest_.loop_over("c", 0, columns, vectors, [&](const SymExpr& at, Block& b) {
      loop::Expr sum = nest_.load(all.buffer, all.offset + at);
      for (int64_t turn = 0; turn < turns; ++turn)
        sum = nest_.apply(loop::ScalarOp::kAdd, {sum, nest_.load(sums, turn * columns + at)});
      nest_.store(all.buffer, all.offset + at, sum, b);
    }));
  }

 private:
  // What is made for a word of terms, whose place in an operand is told.
  using OfWord = std::function<void(int64_t turn, const SymExpr& at, Block&)>;
  using OfColumns = std::function<void(const SymExpr& column, loop::Expr element, Block&)>;

  graph::Value& value() const { return *product_.operand(roles_.vector()); }

  const std::vector<SymExpr>& index() const {
    return graph::index_of_operand(product_, roles_.vector());
  }

  // The terms of a word lie side by side inside of the columns, and are written with them.
  int64_t terms_of_word() const { return *roles_.column_step().as_constant(); }

  // Without words of several terms.
  int64_t turns_of_row() const {
    const auto extent = depth_.back().extent.as_constant();
    return extent && *extent % kSumsOfRow == 0 ? kSumsOfRow : 1;
  }

  Block over_terms(size_t operand, int64_t turns, const SymExpr& first, const OfWord& make,
                   size_t i = 0) {
    const size_t words = depth_.size() - (terms_of_word() > 1 ? 1 : 0);
    if (i == words) {
      Block block;
      make(0, first, block);
      return block;
    }
    const DepthAxis& axis = depth_[i];
    const SymExpr step = roles_.step(operand, *axis.axis);
    const int64_t at_once = i + 1 == words ? turns : 1;
    const SymExpr count = axis.extent.divide_exactly(at_once).value_or(axis.extent);
    return nest_.loop_over("k", 0, count, {}, [&](const SymExpr& place, Block& block) {
      for (int64_t turn = 0; turn < at_once; ++turn) {
        const SymExpr at = place * at_once + turn;
        nest_.bind(*axis.axis, axis.begin + at, block);
        if (i + 1 < words) {
          append(block, over_terms(operand, turns, first + step * at, make, i + 1));
          continue;
        }
        append(block, requests());
        make(turn, first + step * at, block);
      }
    });
  }

  // What the panel is made of that is not shared by several of its terms.
  void find_streams() {
    const Context& context = nest_.context();
    // An element of the streams holds a value of each run.
    const int64_t runs = nest_.tiles().columns / run_;
    const auto elements = product(value().type().shape).as_constant();
    const auto place =
        roles_.index_in_panel(index(), panel_, {}, SymExpr::symbol(kPlace), terms_of_word());
    for (Recording::MemoryAccess& access : record_value(context, &value(), place).accesses)
      if (product(access.value->type().shape).as_constant().value_or(0) * runs >= elements)
        streams_.push_back(std::move(access));
  }

  Block requests() {
    Block block;
    for (const Recording::MemoryAccess& stream : streams_) {
      const loop::Buffer* buffer =
          nest_.evaluator().buffers().buffer_of(stream.value, loop::Access::kIn);
      const SymExpr at =
          stream.offset.replaced(kPlace, 0) + kBytesAhead / dtype_size(buffer->dtype);
      block.push_back(
          loop::Prefetch::make(nest_.arena(), buffer, {nest_.evaluator().index_expr(at)}));
    }
    return block;
  }

  // A loop over each run of columns that lie side by side.
  void over_columns(Block& block, const OfColumns& make) {
    const int64_t width = std::min(run_, nest_.tiles().columns / 2), terms = terms_of_word();
    const loop::LoopMode mode{loop::LoopKind::kVector, width, run_ / width * terms, 1};
    Evaluator& evaluator = nest_.evaluator();
    for (int64_t first = 0; first < nest_.tiles().columns; first += run_)
      append(block,
             nest_.loop_over("c", 0, run_ * terms, mode, [&](const SymExpr& place, Block& b) {
               evaluator.push(&b);
               evaluator.assume_index(*place.as_symbol(), run_ * terms);
               const loop::Expr element = evaluator.evaluate(
                   &value(), roles_.index_in_panel(index(), panel_, {first, run_}, place, terms));
               make(place + first * terms, element, b);
               evaluator.pop();
             }));
  }

  ContractionNest& nest_;
  const TileRoles& roles_;
  const size_t number_;
  const graph::Node& product_;
  const SymExpr panel_;
  const std::vector<DepthAxis>& depth_;
  const int64_t run_;  // columns that one loop goes along
  std::vector<Recording::MemoryAccess> streams_;
};

}  // namespace

bool multiplies_one_row(const ContractionNest& nest) {
  const TileRoles& roles = nest.roles();
  return roles.is_computed() && nest.all_rows().equals_constant(1) &&
         roles.column_step().equals_constant(1);
}

void add_products_of_row(ContractionNest& nest, const TilePlace& place,
                         const std::vector<DepthAxis>& depth, Block& block) {
  PanelWriter(nest, place.product, place.panel, depth).multiply(place, block);
}

const loop::Buffer* compute_panel(ContractionNest& nest, size_t product, const SymExpr& panel,
                                  const std::vector<DepthAxis>& depth, Block& block) {
  return PanelWriter(nest, product, panel, depth).write(block);
}

}  // namespace mlcc::lower
