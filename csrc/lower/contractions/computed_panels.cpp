#include "lower/contractions/computed_panels.h"

namespace mlcc::lower {

using loop::Block;
using schedule::Axis;

namespace {

// A column and term of a panel while streams are looked for.
constexpr const char* kPlace = "place";
// How far ahead terms are asked for, where prefetchers stop at the end of a page (decision 0043).
constexpr int64_t kBytesAhead = 4096;

class PanelWriter {
 public:
  PanelWriter(ContractionNest& nest, size_t product, const SymExpr& panel,
              const std::vector<DepthAxis>& depth)
      : nest_(nest), roles_(nest.roles()), product_(*nest.stages().products()[product]),
        panel_(panel), depth_(depth) {}

  const loop::Buffer* write(Block& block) {
    graph::Value* value = product_.operand(roles_.vector());
    find_streams(*value);
    const int64_t elements = nest_.tiles().columns * most_terms_of_part(nest_);
    buffer_ = nest_.stack("panel", value->type().dtype, elements, block);
    append(block, over_terms(0, 0));
    return buffer_;
  }

 private:
  // The terms of a word lie side by side inside of the columns, and are written with them.
  int64_t terms_of_word() const { return *roles_.column_step().as_constant(); }

  Block over_terms(size_t i, const SymExpr& at) {
    const size_t words = depth_.size() - (terms_of_word() > 1 ? 1 : 0);
    if (i == words) {
      Block block = requests();
      append(block, over_columns(at));
      return block;
    }
    const DepthAxis& axis = depth_[i];
    return nest_.loop_over("k", 0, axis.extent, {}, [&](const SymExpr& place, Block& block) {
      nest_.bind(*axis.axis, axis.begin + place, block);
      append(block, over_terms(i + 1, at + roles_.step(roles_.vector(), *axis.axis) * place));
    });
  }

  // What the panel is made of that is not shared by several of its terms.
  void find_streams(graph::Value& value) {
    const Context& context = nest_.context();
    if (context.machine.prefetches_pages) return;
    const SymExpr elements = product(value.type().shape);
    const auto index =
        roles_.index_in_panel(product_, panel_, SymExpr::symbol(kPlace), terms_of_word());
    for (Recording::MemoryAccess& access : record_value(context, &value, index).accesses)
      if (product(access.value->type().shape) == elements) streams_.push_back(std::move(access));
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

  Block over_columns(const SymExpr& at) {
    const int64_t columns = nest_.tiles().columns;
    const loop::LoopMode mode{loop::LoopKind::kVector, columns / 2, 2 * terms_of_word(), 1};
    return nest_.loop_over(
        "c", 0, columns * terms_of_word(), mode, [&](const SymExpr& place, Block& block) {
          Evaluator& evaluator = nest_.evaluator();
          evaluator.push(&block);
          const loop::Expr element =
              evaluator.evaluate(product_.operand(roles_.vector()),
                                 roles_.index_in_panel(product_, panel_, place, terms_of_word()));
          nest_.store(buffer_, at + place, element, block);
          evaluator.pop();
        });
  }

  ContractionNest& nest_;
  const TileRoles& roles_;
  const graph::Node& product_;
  const SymExpr panel_;
  const std::vector<DepthAxis>& depth_;
  const loop::Buffer* buffer_ = nullptr;
  std::vector<Recording::MemoryAccess> streams_;
};

}  // namespace

const loop::Buffer* compute_panel(ContractionNest& nest, size_t product, const SymExpr& panel,
                                  const std::vector<DepthAxis>& depth, Block& block) {
  return PanelWriter(nest, product, panel, depth).write(block);
}

}  // namespace mlcc::lower
