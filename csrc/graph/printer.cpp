#include <functional>
#include <unordered_map>

#include "graph/text.h"
#include "support/error.h"
#include "support/lexer.h"

namespace mlcc::graph {
namespace {

using NameOf = std::function<std::string(const Value*)>;

std::string print_list(const std::vector<SymExpr>& list) {
  std::string text;
  for (const SymExpr& e : list) text += (text.empty() ? "" : ", ") + e.str();
  return text;
}

std::string print_value_type(const Value& value) {
  return value.kind() == ValueKind::kSize ? "size(" + value.size().str() + ")"
                                          : print(value.type());
}

// One alternative of Attr each.
struct AttrPrinter {
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return print_float(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(DType value) const { return std::string(dtype_name(value)); }
  std::string operator()(const SymExpr& value) const { return value.str(); }
  std::string operator()(const std::vector<SymExpr>& list) const {
    return "[" + print_list(list) + "]";
  }
  std::string operator()(const std::vector<int64_t>& list) const {
    std::string text = "[";
    for (const int64_t value : list) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
    return text + "]";
  }
};

std::string print_attrs(const AttrList& attrs) {
  if (attrs.empty()) return "";
  std::string text = " {";
  for (const auto& [name, value] : attrs)
    text += (text.size() > 2 ? ", " : "") + name + " = " + std::visit(AttrPrinter{}, value);
  return text + "}";
}

std::string print_facts(const ExternFacts& facts) {
  std::string text;
  if (!facts.mutates.empty()) {
    std::string list;
    for (const int operand : facts.mutates)
      list += (list.empty() ? "" : ", ") + std::to_string(operand);
    text += " mutates(" + list + ")";
  }
  if (facts.random) text += " random";
  if (facts.effects) text += " effects";
  if (facts.aliases) text += " aliases";
  if (facts.begins) text += " begins";
  if (facts.waits) text += " waits";
  return text;
}

// Each graph as it stands alone, further right.
std::string print_regions(const std::vector<std::shared_ptr<Graph>>& regions) {
  if (regions.empty()) return "";
  std::string text = " regions {\n    ";
  for (const auto& region : regions)
    for (const char c : print(*region)) text += c == '\n' ? "\n    " : std::string(1, c);
  text.resize(text.size() - 2);
  return text + "}";
}

std::string print_call(const Node& node, const NameOf& name_of) {
  const ExternCall& call = node.extern_call();
  const auto name_of_reference = [&](int index) {
    return "%" + name_of(node.operand(static_cast<size_t>(index)));
  };
  std::string arguments;
  for (const Argument& argument : call.args)
    arguments += (arguments.empty() ? "" : ", ") + print_argument(argument, name_of_reference);
  for (const auto& [name, argument] : call.kwargs)
    arguments += (arguments.empty() ? "" : ", ") + name + " = " +
                 print_argument(argument, name_of_reference);
  return " " + quote(call.name) + "(" + arguments + ")" + print_facts(call.facts) +
         print_regions(call.regions);
}

std::string print_node(const Node& node, const NameOf& name_of) {
  std::string text;
  for (const auto& result : node.results())
    text += (text.empty() ? "%" : ", %") + name_of(result.get()) + ": " + print_value_type(*result);
  if (!text.empty()) text += " = ";
  text += op_info(node.op()).text;
  if (node.op() == Op::kExtern) return text + print_call(node, name_of);
  const char* separator = " %";
  for (const Value* operand : node.operands()) {
    text += separator + name_of(operand);
    separator = ", %";
  }
  return text + print_attrs(node.attrs());
}

// " in 2..65536"; nothing of what has no bounds.
std::string print_range(const SymRange& range) {
  const bool has_low = range.low != kUnboundedLow, has_high = range.high != kUnboundedHigh;
  if (!has_low && !has_high) return "";
  return " in " + (has_low ? std::to_string(range.low) : "") + ".." +
         (has_high ? std::to_string(range.high) : "");
}

// "s0 in 2..65536 hint 128"
std::string print_symbol(const Symbol& symbol) {
  std::string text = symbol.name + print_range(symbol.range);
  if (symbol.hint) text += " hint " + std::to_string(*symbol.hint);
  return text;
}

std::string print_header(const Graph& graph) {
  std::string text = "graph @" + graph.name() + "(";
  const char* separator = "%";
  for (const auto& input : graph.inputs()) {
    text += separator + input->name() + ": " + print_value_type(*input) +
            (input->is_static() ? " static" : "") +
            (input->range() ? print_range(*input->range()) : "");
    separator = ", %";
  }
  text += ")";
  separator = " symbols(";
  for (const Symbol& symbol : graph.symbols()) {
    text += separator + print_symbol(symbol);
    separator = ", ";
  }
  return text + (graph.symbols().empty() ? " {\n" : ") {\n");
}

}  // namespace

std::string print(const TensorType& type) {
  std::string text = std::string(dtype_name(type.dtype)) + "[" + print_list(type.shape) + "]";
  if (!type.strides.empty()) text += " strides(" + print_list(type.strides) + ")";
  if (type.device.kind != DeviceKind::kCpu) text += " @" + type.device.str();
  return text;
}

std::string print(const Node& node) {
  return print_node(node, [](const Value* value) {
    return value->name().empty() ? std::to_string(value->id()) : value->name();
  });
}

std::string print(const Graph& graph) {
  std::unordered_map<const Value*, std::string> names;  // looked up only, never walked
  for (const auto& input : graph.inputs()) names[input.get()] = input->name();
  size_t number = 0;
  for (const Node* node : graph.nodes())
    for (const auto& result : node->results()) names[result.get()] = std::to_string(number++);
  // A broken graph can be printed too: that is when it is needed most.
  const NameOf name_of = [&](const Value* value) {
    const auto found = names.find(value);
    return found == names.end() ? std::string("unknown") : found->second;
  };

  std::string text = print_header(graph);
  for (const Node* node : graph.nodes()) text += "  " + print_node(*node, name_of) + "\n";
  text += "  return";
  const char* separator = " %";
  for (const Value* output : graph.outputs()) {
    text += separator + name_of(output);
    separator = ", %";
  }
  return text + "\n}\n";
}

}  // namespace mlcc::graph
