// What inference.cpp chooses from: the rule of each class of ops, which checks a node and tells its
// result's type, the device apart.
#pragma once

#include "graph/graph.h"

namespace mlcc::graph {

class DraftChecker;

TensorType infer_pointwise(const DraftChecker& check);
TensorType infer_index_map(const DraftChecker& check);
TensorType infer_reduction(const DraftChecker& check);
TensorType infer_creation(const DraftChecker& check);
TensorType infer_gather(const DraftChecker& check);
TensorType infer_update(const DraftChecker& check);
TensorType infer_scan(const DraftChecker& check);
TensorType infer_contraction(const DraftChecker& check);
TensorType infer_attention(const DraftChecker& check);

}  // namespace mlcc::graph
