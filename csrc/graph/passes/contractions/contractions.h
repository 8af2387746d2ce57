// contractions: matrix products as nodes of the graph instead of calls.
//
// What it does: calls of aten.mm, _int_mm, addmm, bmm and baddbmm become `contract`, and the sum
// with what they add to it pointwise ops on its accumulators, rounded once.
//
//   %0: f32[4, 8] = extern "aten.addmm.default"(%b, %x, %w)
//   =>
//   %0: f32[4, 8] = contract %x, %w {lhs = [d0, d2], reduced = [3], rhs = [d2, d1]}
//   %1: f32[4, 8] = add %0, %b
//
// Requires a verified graph, and PassOptions::tiles where code for contractions is wanted. A
// product of which nothing is known while compiling that would make such code faster stays a call:
// operands that change with each call and lie the wrong way for few rows. Keeps dtypes, shapes and
// strides; leaves values without users to dce.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "graph/passes/options.h"
#include "graph/rewriter.h"

namespace mlcc::graph {

struct ContractionOptions : PassOptions {};

// Whether the node is a call of one of these.
bool is_product_call(const Node& node);

// A product as a contraction has it.
struct Product {
  Value *lhs, *rhs;
  std::vector<SymExpr> lhs_index, rhs_index, reduced;
};
// Of a contraction, or of a call that adds nothing to it.
std::optional<Product> plain_product(const Node& node);

// The nearest products, calls or contractions, that values are computed from pointwise and through
// index maps.
std::vector<Node*> products_below(std::vector<Value*> values);

// Computes such a call by `product`, which is given operands of the same rank, 2 or 3, and the
// dtype of its result, with what the call adds to it on the accumulators. False where there is no
// code for it, or `worth` of the product and the machine say that the call is faster.
bool compute_call(const Rewriter& rewriter, const PassOptions& options, Node* call,
                  const std::function<Worth(Value* lhs, Value* rhs)>& worth,
                  const std::function<Value*(Value* lhs, Value* rhs, DType dtype)>& product);

// Makes a contraction of such a call for the sake of what reads it; false where there is none.
bool contract_call(Graph& graph, const PassOptions& options, Node* call);

bool contractions(Graph& graph, const ContractionOptions& options);

}  // namespace mlcc::graph
