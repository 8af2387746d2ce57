// Operands of contractions that are computed from less memory than they take: weights of 4 or 8
// bits with scales and zero points, of a tensor, a column, or a group of terms.
//
//   %0: f32[64, 40] = mul (sub (cast %q), (cast %zeros)), %scales    of i8[40, 64], f32[40, 2]
//
// Instead of the operand, what it is computed from is laid out in panels (PanelDims), and computed
// with as it lies: of %q i8[2, 2, 32, 32, 1], of %scales f32[2, 2, 1, 32, 1]. Packs are kept at the
// size of what they are made of, and a kernel computes a panel of the operand when it needs it
// (lower/contractions/computed_panels.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::graph {

// A matrix's panels: so many columns each, and so many terms of them side by side. And whether sums
// and products that the graph rounds to bf16 on the way stay f32.
struct PanelCut {
  int64_t columns;
  int64_t terms;
  bool drops_rounding = false;
};

// Which dimension of a matrix is what, and the axes of a contraction that run along them.
struct MatrixAxes {
  size_t column_dim, term_dim;
  size_t column_axis, term_axis;
};

class PanelsOfParts {
 public:
  // Nothing where the matrix is computed from as much memory as it takes, or in a way that panels
  // do not allow for.
  static std::optional<PanelsOfParts> of(Value& matrix, const MatrixAxes& axes,
                                         const Assumptions& assumptions);

  // Whether panels of such words can be made of it.
  bool allows(int64_t terms) const { return group_ % terms == 0; }

  // The matrix in `dtype`, panel by panel, and where a contraction reads it.
  struct Packed {
    Value* value;
    std::vector<SymExpr> index;
  };
  Packed pack(Graph& graph, DType dtype, const PanelCut& cut) const;

 private:
  // What a dimension of a part runs along.
  enum class Along : uint8_t { kNothing, kColumns, kTerms, kGroups };
  using Part = std::vector<Along>;

  PanelsOfParts(Value& matrix, const MatrixAxes& axes, const Assumptions& assumptions);
  Access behind_views(Value* value, const std::vector<SymExpr>& index) const;
  bool find_parts(Value* value, const std::vector<SymExpr>& index);
  bool find_group();
  std::optional<Along> along(const SymExpr& index) const;
  Value* packed(Graph& graph, Value* value, const std::vector<SymExpr>& index,
                const PanelCut& cut) const;
  Value* packed_part(Graph& graph, const Access& part, const PanelCut& cut) const;
  Value* in_panels(Graph& graph, const Access& part, const PanelCut& cut) const;
  bool runs_whole(const Access& part) const;
  bool fits(const Access& part) const;
  int64_t extent_of(Along along) const;
  std::vector<SymExpr> place() const;

  Value& matrix_;
  MatrixAxes axes_;
  int64_t columns_, terms_;  // of the matrix
  int64_t group_;            // terms of a group; all of them where there are none
  Assumptions assumptions_;  // of sizes, and of a place in the matrix
  std::vector<Access> parts_;
  int64_t ops_ = 0;
};

}  // namespace mlcc::graph
