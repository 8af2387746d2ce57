#include "graph/control_flow.h"

#include <algorithm>
#include <array>
#include <span>

#include "graph/effects.h"
#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

struct Row {
  std::string_view name;
  ControlFlow kind;
  size_t num_regions;
  size_t num_lists;  // of arguments
};

constexpr std::array<Row, 7> kRows = {{{"cond", ControlFlow::kCond, 2, 1},
                                       {"while_loop", ControlFlow::kWhileLoop, 2, 2},
                                       {"while_loop_stack", ControlFlow::kWhileLoopStack, 2, 2},
                                       {"scan", ControlFlow::kScan, 1, 3},
                                       {"call", ControlFlow::kCall, 1, 1},
                                       {"save_rng", ControlFlow::kSaveRng, 1, 1},
                                       {"with_rng", ControlFlow::kWithRng, 1, 1}}};

const Row* find_row(std::string_view name) {
  const auto* row = std::find_if(kRows.begin(), kRows.end(),
                                 [&](const Row& candidate) { return candidate.name == name; });
  return row == kRows.end() ? nullptr : row;
}

using Problem = std::optional<std::string>;

template <typename... Parts>
Problem problem(const Parts&... parts) {
  return detail::join(parts...);
}

class Check {
 public:
  Check(const Node& node, const Row& row)
      : node_(node), call_(node.extern_call()), row_(row),
        has_predicate_(row.kind == ControlFlow::kCond) {}

  Problem run() const {
    if (call_.regions.size() != row_.num_regions)
      return problem("found ", call_.regions.size(), " regions, expected ", row_.num_regions);
    const size_t num_args = row_.num_lists + (has_predicate_ ? 1 : 0);
    if (call_.args.size() != num_args || !call_.kwargs.empty())
      return problem("found ", call_.args.size(), " arguments, expected ", num_args);
    for (size_t i = has_predicate_ ? 1 : 0; i < num_args; ++i)
      if (!std::holds_alternative<ArgList>(call_.args[i].value))
        return problem("argument ", i, " is no list");
    for (size_t r = 0; r < call_.regions.size(); ++r)
      if (Problem found = check_region(r)) return problem("region ", r, ": ", *found);
    return std::nullopt;
  }

 private:
  const ArgList& list(size_t i) const {
    return std::get<ArgList>(call_.args[i + (has_predicate_ ? 1 : 0)].value);
  }

  Problem check_region(size_t r) const {
    const Graph& region = *call_.regions[r];
    size_t input = 0;
    for (size_t i = 0; i < row_.num_lists; ++i) {
      const bool is_row = row_.kind == ControlFlow::kScan && i == 1;
      // The state is not handed in.
      const size_t first = row_.kind == ControlFlow::kWithRng ? 1 : 0;
      if (list(i).size() < first) return problem("the state of the generator is missing");
      for (const Argument& argument : std::span(list(i)).subspan(first)) {
        if (input == region.inputs().size()) return problem("too few inputs");
        if (Problem found = check_input(*region.inputs()[input], argument, is_row))
          return problem("input ", input, " ", *found);
        ++input;
      }
    }
    if (input != region.inputs().size())
      return problem("found ", region.inputs().size(), " inputs, expected ", input);
    return check_outputs(region, r);
  }

  Problem check_input(const Value& input, const Argument& argument, bool is_row) const {
    const auto* reference = std::get_if<ArgRef>(&argument.value);
    if (reference == nullptr) {
      if (!std::holds_alternative<SymExpr>(argument.value))
        return problem("stands for what is neither a value nor a size");
      if (input.kind() != ValueKind::kSize) return problem("is no size");
      return std::nullopt;
    }
    const Value& operand = *node_.operand(static_cast<size_t>(reference->index));
    if (input.kind() != operand.kind()) return problem("and its operand are not of one kind");
    if (input.kind() == ValueKind::kSize) return std::nullopt;
    const size_t rank = input.type().shape.size() + (is_row ? 1 : 0);
    return check_type(input.type(), operand.type(), rank);
  }

  static Problem check_type(const TensorType& found, const TensorType& expected, size_t rank) {
    if (found.dtype == expected.dtype && rank == expected.shape.size() &&
        found.device == expected.device)
      return std::nullopt;
    return problem("is ", print(found), " for ", print(expected));
  }

  Problem check_outputs(const Graph& region, size_t r) const {
    const auto& outputs = region.outputs();
    const bool is_stacked = row_.kind == ControlFlow::kWhileLoopStack;
    if ((row_.kind == ControlFlow::kWhileLoop || is_stacked) && r == 0) {
      const bool fits = outputs.size() == 1 && outputs[0]->kind() == ValueKind::kTensor &&
                        outputs[0]->type().dtype == DType::kBool;
      return fits ? std::nullopt : problem("a condition gives one bool");
    }
    // The state comes before what the region gives.
    const size_t lead = row_.kind == ControlFlow::kSaveRng ? 1 : 0;
    if (outputs.size() + lead != node_.results().size())
      return problem("found ", outputs.size(), " outputs, expected ", node_.results().size());
    size_t num_carried = row_.kind == ControlFlow::kScan ? list(0).size() : outputs.size();
    if (is_stacked) num_carried = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i]->kind() != ValueKind::kTensor) return problem("output ", i, " is a size");
      const TensorType& type = outputs[i]->type();
      const size_t rank = type.shape.size() + (i < num_carried ? 0 : 1);  // of the result
      if (Problem found = check_type(type, node_.result(i + lead)->type(), rank))
        return problem("output ", i, " ", *found);
    }
    return std::nullopt;
  }

  const Node& node_;
  const ExternCall& call_;
  const Row& row_;
  const bool has_predicate_;
};

}  // namespace

std::optional<ControlFlow> parse_control_flow(std::string_view name) {
  const Row* row = find_row(name);
  if (row == nullptr) return std::nullopt;
  return row->kind;
}

std::optional<std::string> control_flow_error(const Node& node) {
  const Row* row = find_row(node.extern_call().name);
  if (row == nullptr) return problem("regions hang on what is no control flow");
  return Check(node, *row).run();
}

ExternFacts facts_of_regions(const std::vector<std::shared_ptr<Graph>>& regions) {
  ExternFacts facts;
  for (const auto& region : regions) {
    for (const Node* node : region->nodes()) {
      facts.effects = facts.effects || writes_memory(*node);
      facts.random = facts.random || has_effects(*node);
    }
  }
  return facts;
}

}  // namespace mlcc::graph
