#include "graph/graph.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "graph/inference.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

const Attr* find_attr(const AttrList& attrs, std::string_view name) {
  const auto found = std::find_if(attrs.begin(), attrs.end(),
                                  [&](const auto& attr) { return attr.first == name; });
  return found == attrs.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<SymExpr> TensorType::dense_or_strides() const {
  return strides.empty() ? contiguous_strides(shape) : strides;
}

// ---- nodes

bool Node::has_attr(std::string_view name) const { return find_attr(attrs_, name) != nullptr; }

const Attr& Node::attr(std::string_view name) const {
  const Attr* found = find_attr(attrs_, name);
  MLCC_CHECK(found != nullptr, op_info(op_).text, " has no attribute '", name, "'");
  return *found;
}

template <typename T>
const T& Node::attr(std::string_view name) const {
  const T* value = std::get_if<T>(&attr(name));
  MLCC_CHECK(value != nullptr, op_info(op_).text, ": attribute '", name, "' is of another type");
  return *value;
}

template const int64_t& Node::attr(std::string_view) const;
template const double& Node::attr(std::string_view) const;
template const bool& Node::attr(std::string_view) const;
template const std::string& Node::attr(std::string_view) const;
template const DType& Node::attr(std::string_view) const;
template const SymExpr& Node::attr(std::string_view) const;
template const std::vector<int64_t>& Node::attr(std::string_view) const;
template const std::vector<SymExpr>& Node::attr(std::string_view) const;

const ExternCall& Node::extern_call() const {
  MLCC_CHECK(extern_ != nullptr, op_info(op_).text, " is no extern call");
  return *extern_;
}

// ---- symbols

void Graph::add_symbol(Symbol symbol) {
  MLCC_USER_CHECK(is_name(symbol.name), "symbol '", symbol.name, "': expected letters and digits");
  auto place = std::find_if(symbols_.begin(), symbols_.end(),
                            [&](const Symbol& s) { return s.name == symbol.name; });
  if (place == symbols_.end()) {
    place = symbols_.insert(place, std::move(symbol));
  } else {
    place->range.low = std::max(place->range.low, symbol.range.low);
    place->range.high = std::min(place->range.high, symbol.range.high);
    if (symbol.hint) place->hint = symbol.hint;
  }
  MLCC_USER_CHECK(place->range.low <= place->range.high, "symbol ", place->name,
                  ": its range is empty, low ", place->range.low, ", high ", place->range.high);
}

int64_t Graph::size_hint(std::string_view name) const {
  static constexpr int64_t kUnknownSize = 1024;  // of a symbol without a hint
  for (const Symbol& symbol : symbols_)
    if (symbol.name == name) return symbol.hint.value_or(kUnknownSize);
  return kUnknownSize;
}

int64_t Graph::expected(const SymExpr& size) const {
  return size.evaluate([this](std::string_view name) { return size_hint(name); });
}

int64_t Graph::read_input_bytes() const {
  int64_t bytes = 0;
  for (const auto& input : inputs_)
    if (!input->users().empty())
      bytes += expected(product(input->type().shape)) * dtype_size(input->type().dtype);
  return bytes;
}

Assumptions Graph::assumptions() const {
  Assumptions assumptions;
  for (const Symbol& symbol : symbols_) assumptions.set_range(symbol.name, symbol.range);
  return assumptions;
}

// ---- reading

std::vector<Node*> Graph::nodes() const {
  std::vector<Node*> all;
  all.reserve(nodes_.size());
  for (const auto& node : nodes_) all.push_back(node.get());
  return all;
}

bool Graph::is_output(const Value* value) const {
  return std::find(outputs_.begin(), outputs_.end(), value) != outputs_.end();
}

// ---- building blocks of the builder

void Graph::check_input_name(const std::string& name) const {
  MLCC_USER_CHECK(is_name(name), "input '", name,
                  "': expected a name of letters and digits that begins with a letter");
  for (const auto& input : inputs_)
    MLCC_USER_CHECK(input->name() != name, "input '", name, "': there is one of this name already");
}

Value* Graph::add_input(std::string name, TensorType type, bool is_static,
                        std::optional<SymRange> range) {
  check_input_name(name);
  auto value = std::make_unique<Value>();
  value->id_ = next_id_++;
  value->name_ = std::move(name);
  value->type_ = normalize(std::move(type));
  value->is_static_ = is_static;
  value->range_ = range;
  return inputs_.emplace_back(std::move(value)).get();
}

void Graph::drop_promises(const std::function<bool(const Value&)>& of) {
  for (const auto& input : inputs_)
    if (of(*input)) input->range_.reset();
}

Value* Graph::add_size_input(std::string name, SymExpr size) {
  Value* value = add_input(std::move(name), {});
  value->kind_ = ValueKind::kSize;
  value->size_ = std::move(size);
  return value;
}

void Graph::set_insertion_point(Node* before) {
  insertion_ = before == nullptr ? nodes_.end() : before->position_;
}

Node* Graph::insert_node(Op op, std::vector<Value*> operands, AttrList attrs) {
  const auto position = nodes_.insert(insertion_, std::make_unique<Node>());
  Node* node = position->get();
  node->position_ = position;
  node->op_ = op;
  node->operands_ = std::move(operands);
  node->attrs_ = std::move(attrs);
  for (Value* operand : node->operands_) operand->users_.push_back(node);
  return node;
}

Value* Graph::add_result(Node* node) {
  auto value = std::make_unique<Value>();
  value->id_ = next_id_++;
  value->producer_ = node;
  value->result_index_ = static_cast<int>(node->results_.size());
  return node->results_.emplace_back(std::move(value)).get();
}

void Graph::set_outputs(std::vector<Value*> outputs) {
  for (const Value* output : outputs) MLCC_CHECK(output != nullptr, "a graph output is null");
  outputs_ = std::move(outputs);
}

// ---- editing

namespace {

void remove_one(std::vector<Node*>& users, const Node* node) {
  const auto use = std::find(users.begin(), users.end(), node);
  MLCC_CHECK(use != users.end(), "use list lacks a node that uses the value");
  users.erase(use);
}

}  // namespace

void Graph::set_strides(Value* value, std::vector<SymExpr> strides) {
  MLCC_CHECK(value->kind_ == ValueKind::kTensor, "set_strides: %", value->id_, " is a size");
  value->type_.strides = std::move(strides);
  value->type_ = normalize(std::move(value->type_));
}

void Graph::replace_all_uses(Value* from, Value* to) {
  if (from == to) return;
  MLCC_CHECK(from->kind_ == to->kind_ && is_same_type(from->type_, to->type_) &&
                 from->size_ == to->size_,
             "replace_all_uses: %", from->id_, " and %", to->id_, " differ in type");
  for (Node* user : from->users_)
    for (Value*& operand : user->operands_)
      if (operand == from) operand = to;
  to->users_.insert(to->users_.end(), from->users_.begin(), from->users_.end());
  from->users_.clear();
  std::replace(outputs_.begin(), outputs_.end(), from, to);
}

void Graph::replace_operand(Node* node, size_t index, Value* to) {
  MLCC_CHECK(index < node->operands_.size(), op_info(node->op_).text, " has no operand ", index);
  Value*& operand = node->operands_[index];
  MLCC_CHECK(operand->kind_ == to->kind_ && is_same_type(operand->type_, to->type_),
             "replace_operand: %", operand->id_, " and %", to->id_, " differ in type");
  remove_one(operand->users_, node);
  operand = to;
  to->users_.push_back(node);
}

void Graph::erase(Node* node) {
  for (const auto& result : node->results_)
    MLCC_CHECK(result->users_.empty() && !is_output(result.get()),
               "erase: ", op_info(node->op_).text, " %", result->id_, " is still used");
  for (Value* operand : node->operands_) remove_one(operand->users_, node);
  if (insertion_ == node->position_) ++insertion_;
  nodes_.erase(node->position_);
}

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>(name_);
  copy->symbols_ = symbols_;
  std::unordered_map<const Value*, Value*> copy_of;
  const auto copy_value = [&](const Value& value, Node* producer) {
    auto twin = std::make_unique<Value>(value);
    twin->producer_ = producer;
    twin->users_.clear();
    copy_of[&value] = twin.get();
    return twin;
  };
  for (const auto& input : inputs_) copy->inputs_.push_back(copy_value(*input, nullptr));
  for (const auto& node : nodes_) {
    std::vector<Value*> operands;
    for (const Value* operand : node->operands_) operands.push_back(copy_of.at(operand));
    Node* twin = copy->insert_node(node->op_, std::move(operands), node->attrs_);
    if (node->extern_) twin->extern_ = std::make_unique<ExternCall>(*node->extern_);
    if (node->extern_)
      for (auto& region : twin->extern_->regions) region = region->clone();
    twin->source_ = node->source_;
    for (const auto& result : node->results_) twin->results_.push_back(copy_value(*result, twin));
  }
  for (const Value* output : outputs_) copy->outputs_.push_back(copy_of.at(output));
  copy->next_id_ = next_id_;
  return copy;
}

}  // namespace mlcc::graph
