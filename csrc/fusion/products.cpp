#include "fusion/products.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fusion/fusion.h"
#include "fusion/node_kinds.h"
#include "graph/contraction.h"

namespace mlcc::fusion {
namespace {

using graph::Node;
using graph::TensorType;
using graph::Value;
using Index = std::vector<SymExpr>;

// Rows of products that had better share a kernel whatever follows them.
constexpr int64_t kFewRows = 64;

// Rows by columns.
bool is_product_of_matrices(const Node& node) {
  return node.op() == graph::Op::kContract && node.result()->type().shape.size() == 2 &&
         node.operand(0)->type().shape.size() == 2 &&
         node.result()->type().device.kind == DeviceKind::kCpu;
}

// An input in panels of columns. What is copied in each call would be copied for all products
// before the first of them.
bool is_packed_input(const Node& node) {
  const auto takes_columns_apart = [](const SymExpr& at) {
    const std::vector<SymExpr::Function> functions = at.functions();
    return std::any_of(functions.begin(), functions.end(), [](const SymExpr::Function& function) {
      return function.kind == AtomKind::kMod &&
             function.numerator == SymExpr::symbol(graph::axis_name(1));
    });
  };
  const auto& index = node.attr<Index>("rhs");
  return node.operand(1)->producer() == nullptr &&
         std::any_of(index.begin(), index.end(), takes_columns_apart);
}

bool lie_alike(const TensorType& type, const TensorType& other) {
  return type.dtype == other.dtype && type.shape == other.shape && type.strides == other.strides &&
         type.device == other.device;
}

using Products = std::vector<const Node*>;

bool may_follow(const Node& node) { return is_inlinable(node) || is_free(node); }

// Whether a value is computed from one of the products by way of what follows none of them.
bool is_computed_beside(const Value& value, const Products& products,
                        const std::unordered_map<const Node*, int>& order) {
  std::unordered_set<const Node*> seen_near, seen_beside;  // membership only
  std::vector<std::pair<const Node*, bool>> open = {{value.producer(), false}};
  while (!open.empty()) {
    const auto [node, is_beside] = open.back();
    open.pop_back();
    if (node == nullptr || order.at(node) < order.at(products.front())) continue;
    if (!(is_beside ? seen_beside : seen_near).insert(node).second) continue;
    const bool is_product = std::find(products.begin(), products.end(), node) != products.end();
    if (is_product && is_beside) return true;
    if (is_product) continue;
    for (const Value* operand : node->operands())
      open.emplace_back(operand->producer(), is_beside || !may_follow(*node));
  }
  return false;
}

// Pointwise ops that read the product, directly or not.
std::unordered_set<const Node*> followers_of(const Node& product) {
  std::unordered_set<const Node*> followers;  // membership only
  Products open = {&product};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Node* user : node->result()->users())
      if (may_follow(*user) && followers.insert(user).second) open.push_back(user);
  }
  return followers;
}

}  // namespace

bool meet_later(const Products& products, const std::unordered_map<const Node*, int>& order) {
  std::unordered_set<const Node*> seen;  // membership only
  Products open = products;
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Node* user : node->result()->users()) {
      if (!may_follow(*user) || !seen.insert(user).second) continue;
      if (std::any_of(user->operands().begin(), user->operands().end(), [&](const Value* operand) {
            return is_computed_beside(*operand, products, order);
          }))
        return true;
      open.push_back(user);
    }
  }
  return false;
}

bool are_worth_joining(const Products& products, int64_t rows) {
  if (rows <= kFewRows) return true;
  const std::unordered_set<const Node*> first = followers_of(*products.front());
  const std::unordered_set<const Node*> last = followers_of(*products.back());
  return std::any_of(first.begin(), first.end(),
                     [&](const Node* follower) { return last.contains(follower); });
}

bool share_tiles(const Node& contraction, const Node& other) {
  if (!is_product_of_matrices(contraction) || !is_product_of_matrices(other)) return false;
  if (contraction.operand(0) != other.operand(0)) return false;
  for (const char* index : {"lhs", "rhs", "reduced"})
    if (contraction.attr<Index>(index) != other.attr<Index>(index)) return false;
  return is_packed_input(contraction) && is_packed_input(other) &&
         lie_alike(contraction.operand(1)->type(), other.operand(1)->type()) &&
         lie_alike(contraction.result()->type(), other.result()->type());
}

}  // namespace mlcc::fusion
