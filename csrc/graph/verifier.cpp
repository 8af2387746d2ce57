#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/control_flow.h"
#include "graph/inference.h"
#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// Calls `visit` on every size inside.
template <typename Visit>
void for_each_size(const Argument& argument, const Visit& visit) {
  if (const auto* size = std::get_if<SymExpr>(&argument.value)) visit(*size);
  if (const auto* list = std::get_if<ArgList>(&argument.value))
    for (const Argument& element : *list) for_each_size(element, visit);
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  void verify() {
    for (const Symbol& symbol : graph_.symbols()) declared_.insert(symbol.name);
    for (const auto& input : graph_.inputs()) check_input(*input);
    for (const Node* node : graph_.nodes()) check_node(*node);
    for (const Value* output : graph_.outputs())
      require(nullptr, defined_.contains(output), "an output is no value of the graph");
    check_use_lists();
  }

 private:
  template <typename... Parts>
  void require(const Node* node, bool condition, const Parts&... parts) const {
    if (condition) return;
    const std::string where =
        node == nullptr || node->source().empty() ? "" : node->source() + ": ";
    const std::string subject =
        node == nullptr ? "graph @" + graph_.name() + ": " : "`" + print(*node) + "`: ";
    throw InternalError(detail::join(where, subject, parts...));
  }

  // Calls `visit` on every symbol in a value's type.
  template <typename Visit>
  static void for_each_symbol(const Value& value, const Visit& visit) {
    const auto visit_all = [&](const SymExpr& e) {
      for (const std::string& symbol : e.symbols()) visit(symbol);
    };
    visit_all(value.size());
    for (const SymExpr& e : value.type().shape) visit_all(e);
    for (const SymExpr& e : value.type().strides) visit_all(e);
  }

  void define(const Node* node, const Value& value) {
    require(node, defined_.insert(&value).second, "the result is defined twice");
    require(node, ids_.insert(value.id()).second, "%", value.id(),
            " is the id of another value too");
    const size_t rank =
        value.type().strides.empty() ? value.type().shape.size() : value.type().strides.size();
    require(node, rank == value.type().shape.size(), "found ", rank, " strides for ",
            value.type().shape.size(), " dimensions");
  }

  void check_input(const Value& input) {
    define(nullptr, input);
    require(nullptr, input.producer() == nullptr, "input %", input.name(), " has a producer");
    require(nullptr, !input.is_static() || input.kind() == ValueKind::kTensor, "input %",
            input.name(), " is a size, which cannot be static");
    if (const auto& range = input.range()) {
      require(nullptr, input.is_static() && is_integer(input.type().dtype), "input %", input.name(),
              " has a range, which static inputs of integers only can have");
      require(nullptr, range->low <= range->high, "input %", input.name(), ": the range ",
              range->low, "..", range->high, " is empty");
    }
    for_each_symbol(input, [&](const std::string& symbol) {
      require(nullptr, declared_.contains(symbol), "input %", input.name(), ": symbol ", symbol,
              " is not declared");
      known_.insert(symbol);
    });
  }

  void check_known(const Node& node, const SymExpr& e) const {
    for (const std::string& symbol : e.symbols()) check_known(node, symbol);
  }
  void check_known(const Node& node, const std::string& symbol) const {
    require(&node, declared_.contains(symbol), "symbol ", symbol, " is not declared");
    require(&node, known_.contains(symbol), "symbol ", symbol,
            " is used before the extern call that defines it");
  }

  void check_node(const Node& node) {
    for (size_t i = 0; i < node.operands().size(); ++i)
      require(&node, defined_.contains(node.operand(i)), "operand ", i,
              " is not defined before its use");
    for (size_t i = 0; i < node.results().size(); ++i) {
      const Value& result = *node.result(i);
      require(&node, result.producer() == &node && result.result_index() == static_cast<int>(i),
              "result ", i, " does not point back to its node");
      define(&node, result);
      require(&node, !result.is_static(), "the result is static, as inputs only can be");
    }
    for (const auto& [name, value] : node.attrs())
      if (const auto* size = std::get_if<SymExpr>(&value)) check_known(node, *size);
    if (node.op() == Op::kExtern) return check_extern(node);
    for (const auto& result : node.results())
      for_each_symbol(*result, [&](const std::string& symbol) { check_known(node, symbol); });
    check_type(node);
  }

  void check_type(const Node& node) const {
    require(&node, node.results().size() == 1, "found ", node.results().size(),
            " results, expected one");
    const Value& result = *node.result();
    const bool is_size = node.op() == Op::kSizeResult;
    require(&node, (result.kind() == ValueKind::kSize) == is_size, "the result is ",
            is_size ? "no size" : "a size");
    if (is_size) return;
    try {
      const TensorType expected = infer(
          {node.op(), node.operands(), node.attrs(), result.type(), std::to_string(result.id())});
      require(&node, is_same_type(expected, result.type()),
              "the result's type is not the inferred ", print(expected));
    } catch (const Error& error) {
      require(&node, false, error.what());
    }
  }

  void check_extern(const Node& node) {
    const ExternCall& call = node.extern_call();
    int references = 0;
    const auto check_argument = [&](const Argument& argument) {
      for_each_size(argument, [&](const SymExpr& size) { check_known(node, size); });
      for_each_reference(argument, [&](const ArgRef& reference) {
        require(&node, reference.index == references, "reference ", references,
                " in the arguments names operand ", reference.index);
        ++references;
      });
    };
    for (const Argument& argument : call.args) check_argument(argument);
    for (const auto& [name, argument] : call.kwargs) check_argument(argument);
    require(&node, references == static_cast<int>(node.operands().size()), "found ", references,
            " references in the arguments for ", node.operands().size(), " operands");
    check_regions(node);
    for (const int operand : call.facts.mutates)
      require(&node, operand >= 0 && operand < references, "mutates operand ", operand,
              " which is not there");
    for (const auto& result : node.results())
      for_each_symbol(*result, [&](const std::string& symbol) {
        require(&node, declared_.contains(symbol), "symbol ", symbol, " is not declared");
        known_.insert(symbol);
      });
  }

  void check_regions(const Node& node) const {
    const ExternCall& call = node.extern_call();
    if (call.regions.empty()) return;
    for (const auto& region : call.regions) Verifier(*region).verify();
    if (const auto error = control_flow_error(node)) require(&node, false, *error);
  }

  void check_use_lists() const {
    std::unordered_map<const Value*, std::vector<const Node*>> uses;
    for (const Node* node : graph_.nodes())
      for (const Value* operand : node->operands()) uses[operand].push_back(node);
    const auto check = [&](const Node* node, const Value& value) {
      std::vector<const Node*> found(value.users().begin(), value.users().end());
      std::vector<const Node*> expected = uses[&value];
      std::sort(found.begin(), found.end());
      std::sort(expected.begin(), expected.end());
      require(node, found == expected, "the use list of %", value.id(), " has ", found.size(),
              " entries that are not the ", expected.size(), " uses");
    };
    for (const auto& input : graph_.inputs()) check(nullptr, *input);
    for (const Node* node : graph_.nodes())
      for (const auto& result : node->results()) check(node, *result);
  }

  const Graph& graph_;
  std::set<std::string, std::less<>> declared_;
  std::set<std::string, std::less<>> known_;
  std::unordered_set<const Value*> defined_;
  std::unordered_set<int> ids_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).verify(); }

}  // namespace mlcc::graph
