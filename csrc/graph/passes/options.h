// What every graph pass is handed by the runner.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "graph/graph.h"

namespace mlcc::graph {

// How many rewrites may still be made. Shared by all passes of a run, so that the n-th rewrite of a
// pipeline, the one that breaks a graph, is found by bisection.
class RewriteBudget {
 public:
  explicit RewriteBudget(int64_t limit) : limit_(limit) {}  // -1: no limit

  bool take() {
    if (limit_ >= 0 && used_ >= limit_) return false;
    ++used_;
    return true;
  }
  int64_t used() const { return used_; }

 private:
  int64_t limit_;
  int64_t used_ = 0;
};

// What is to be expected of a product of matrices.
struct ProductSize {
  int64_t rows, columns, terms;
  // Whether rows are the pixels that a window goes over in several images, with symbols among their
  // sizes.
  bool has_images_of_unknown_size;
};

// What is to be expected of a convolution.
struct ConvolutionSize {
  int64_t images, height, width;  // of the result
  int64_t channels;               // of the image
  int64_t columns;                // channels of the result
};

// What passes know of the tiles that contractions are computed in.
struct TileOptions {
  std::function<int64_t(DType accumulator)> columns;
  // Terms of a sum that one instruction multiplies and adds up, where they lie side by side.
  std::function<int64_t(DType lhs, DType rhs)> terms;
  // Whether of bytes it multiplies unsigned with signed ones.
  std::function<bool()> mixes_signs;
  // What both are better widened to once than by each tile, if many rows are multiplied; and
  // whether weights may be.
  std::function<std::optional<DType>(DType lhs, DType rhs)> wider_dtype;
  std::function<bool()> widens_weights;
  // Terms in a row of a register of a whole tile, where there are such that multiply words of them,
  // bytes of any sign; else 0.
  std::function<int64_t(DType lhs, DType rhs)> terms_of_register;
  // Where operands change with each call, beside a library: rows up to which a matrix is read as it
  // lies, and products for each element that is copied from which on copies are worth their time.
  std::function<int64_t(DType lhs, DType rhs)> most_rows_unpacked;
  std::function<int64_t(DType lhs, DType rhs)> products_worth_packing;
  // Rows up to which products along the terms, one sum after the other, are likely no slower than a
  // library's where a matrix changes with each call and its terms lie side by side.
  std::function<int64_t(DType lhs, DType rhs)> most_rows_summed;
  // Rows that are multiplied with what a kernel computes of a panel of so many columns while it is
  // in registers.
  std::function<int64_t(DType accumulator, int64_t columns)> most_rows_in_registers;
  // Columns of a packed operand's panels; empty: as many as of other tiles.
  std::function<int64_t(DType accumulator, const ProductSize&)> panel_columns;
  // Columns of the panels that transformed filters of 3x3 lie in; 0: they are not worth it.
  std::function<int64_t(const ConvolutionSize&)> transformed_columns;
};

// What the cost model says of code for a call, beside the call.
enum class Worth : uint8_t { kCall, kLikelyCall, kLikelyCode, kCode };

// Multiply-adds beyond which running both for a look would take too long.
constexpr double kMostProductsInDoubt = 1 << 26;

struct PassOptions {
  RewriteBudget* budget = nullptr;  // null: no limit
  std::function<void(const Node&, std::string_view reason)> on_no_match;

  // Nothing: no code for contractions is wanted.
  std::optional<TileOptions> tiles;

  // Whether rows of floats may become bytes where they are multiplied with weights that stand for
  // such.
  bool quantizes_rows = false;

  // Whether calls may stay where a library is likely faster. Where none is there (a package runs
  // without one) all that code can be made for gets it, at worst a plain nest of loops.
  bool has_library = true;

  // Which one runs faster on this machine, where the cost model is in doubt: code for a call of the
  // graph, which these options would make if told to, or the call. Empty: the model's guess.
  std::function<bool(const Graph&, const Node& call, bool guess)> is_code_faster;

  bool wants_code(const Graph& graph, const Node& call, Worth worth) const {
    if (!has_library) return true;
    const bool guess = worth >= Worth::kLikelyCode;
    const bool is_sure = worth == Worth::kCall || worth == Worth::kCode;
    return is_sure || !is_code_faster ? guess : is_code_faster(graph, call, guess);
  }

  // Asked once before each rewrite, when all that is left is to make it.
  bool may_rewrite() const { return budget == nullptr || budget->take(); }

  // `return options.no_match(node, "stride of dim 1 is unknown")`: false, and the reason goes to
  // whoever listens.
  bool no_match(const Node& node, std::string_view reason) const {
    if (on_no_match) on_no_match(node, reason);
    return false;
  }
};

}  // namespace mlcc::graph
