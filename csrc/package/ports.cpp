#include "package/ports.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "package/status.h"

namespace mlcc::package {
namespace {

using runtime::Slot;

// mlcc_dtype has the numbers of DType, as far as callers can name them.
bool is_public(DType dtype) { return static_cast<int>(dtype) <= MLCC_F64; }

std::string dtype_in_words(mlcc_dtype dtype) {
  return dtype < 0 || dtype > MLCC_F64 ? detail::join("number ", static_cast<int>(dtype))
                                       : std::string(dtype_name(static_cast<DType>(dtype)));
}

const runtime::TensorSpec& spec_of(const runtime::ExecutablePlan& plan, Slot slot) {
  const runtime::TensorSpec* spec = find_output_spec(plan, slot);
  MLCC_STATUS_CHECK(spec != nullptr, MLCC_INVALID_FILE, "plan: an output is no tensor");
  return *spec;
}

int32_t index_in(const std::vector<Symbol>& symbols, std::string_view name) {
  for (size_t i = 0; i < symbols.size(); ++i)
    if (symbols[i].name == name) return static_cast<int32_t>(i);
  throw StatusError(MLCC_INVALID_FILE, detail::join("plan: a size of unknown ", name));
}

void evaluate(const std::vector<runtime::SizeExpr>& exprs, std::span<const int64_t> symbols,
              std::vector<int64_t>& values) {
  values.clear();
  for (const runtime::SizeExpr& expr : exprs) values.push_back(expr.evaluate(symbols));
}

}  // namespace

Port::Port(std::string name, Slot slot, const runtime::TensorSpec& spec,
           std::vector<std::string> texts, const std::vector<Symbol>& symbols)
    : name_(std::move(name)), slot_(slot), dtype_(spec.dtype), texts_(std::move(texts)) {
  MLCC_STATUS_CHECK(is_public(dtype_), MLCC_INVALID_FILE, "plan: ", name_, " is of dtype ",
                    dtype_name(dtype_));
  const auto index_of = [&](std::string_view symbol) { return index_in(symbols, symbol); };
  const auto known = [](const SymExpr& size) { return size.as_constant().value_or(-1); };
  for (const SymExpr& size : spec.shape) {
    sizes_.emplace_back(size, index_of);
    known_sizes_.push_back(known(size));
  }
  for (const SymExpr& stride : spec.strides) {
    strides_.emplace_back(stride, index_of);
    known_strides_.push_back(known(stride));
  }
  if (texts_.empty())
    for (const int64_t size : known_sizes_) texts_.push_back(std::to_string(size));
  MLCC_STATUS_CHECK(texts_.size() == sizes_.size(), MLCC_INVALID_FILE, "plan: ", name_, " has ",
                    texts_.size(), " texts of ", sizes_.size(), " sizes");
  for (const std::string& text : texts_) text_pointers_.push_back(text.c_str());
}

void Port::sizes(std::span<const int64_t> symbols, std::vector<int64_t>& sizes) const {
  evaluate(sizes_, symbols, sizes);
}

void Port::strides(std::span<const int64_t> symbols, std::vector<int64_t>& strides) const {
  evaluate(strides_, symbols, strides);
}

std::string Port::sizes_in_words() const {
  std::string text = "[";
  for (const std::string& size : texts_) text += (text.size() > 1 ? ", " : "") + size;
  return text + "]";
}

void Port::check_kind(const What& what, const mlcc_tensor& tensor) const {
  MLCC_STATUS_CHECK(static_cast<int>(tensor.dtype) == static_cast<int>(dtype_),
                    MLCC_INVALID_ARGUMENT, what, ": found dtype ", dtype_in_words(tensor.dtype),
                    ", expected ", dtype_name(dtype_));
  MLCC_STATUS_CHECK(tensor.rank == static_cast<int32_t>(rank()), MLCC_INVALID_ARGUMENT, what,
                    ": found ", tensor.rank, " dimensions, expected ", sizes_in_words());
  MLCC_STATUS_CHECK(tensor.rank == 0 || tensor.sizes != nullptr, MLCC_INVALID_ARGUMENT, what,
                    ": sizes are null");
}

mlcc_tensor_info Port::info() const {
  return {name_.c_str(),       static_cast<mlcc_dtype>(dtype_), static_cast<int32_t>(rank()),
          known_sizes_.data(), known_strides_.data(),           text_pointers_.data()};
}

Ports::Ports(const Contents& contents, const runtime::Executable& executable) {
  const std::vector<std::string>& symbols = executable.symbols();
  for (const std::string& name : symbols) {
    const auto found = std::find_if(contents.symbols.begin(), contents.symbols.end(),
                                    [&](const Symbol& symbol) { return symbol.name == name; });
    MLCC_STATUS_CHECK(found != contents.symbols.end(), MLCC_INVALID_FILE, "plan: symbol ", name,
                      " has no range");
    symbols_.push_back(*found);
  }
  const runtime::ExecutablePlan& plan = executable.plan();
  std::vector<std::optional<size_t>> given(plan.inputs.size());  // by slot
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (contents.inputs[i].kind != InputKind::kGiven) continue;
    MLCC_STATUS_CHECK(!plan.inputs[i].is_size, MLCC_INVALID_FILE, "plan: input ",
                      contents.inputs[i].name, " is a size");
    given[i] = inputs_.size();
    inputs_.emplace_back(contents.inputs[i].name, static_cast<Slot>(i), plan.inputs[i].spec,
                         contents.inputs[i].sizes, symbols_);
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    outputs_.emplace_back(contents.outputs[i].name, plan.outputs[i], spec_of(plan, plan.outputs[i]),
                          contents.outputs[i].sizes, symbols_);
  std::vector<bool> is_bound(symbols_.size(), false);
  for (const runtime::Step& step : plan.steps) {
    const auto* bind = std::get_if<runtime::BindStep>(&step);
    if (bind == nullptr) continue;
    const auto slot = static_cast<size_t>(bind->slot);
    MLCC_STATUS_CHECK(slot < given.size() && given[slot] && bind->dim >= 0 &&
                          static_cast<size_t>(bind->dim) < inputs_[*given[slot]].rank(),
                      MLCC_INVALID_FILE, "plan: symbol ", bind->symbol, " is no size of an input");
    const auto symbol = static_cast<size_t>(
        std::find(symbols.begin(), symbols.end(), bind->symbol) - symbols.begin());
    MLCC_STATUS_CHECK(symbol < symbols_.size(), MLCC_INVALID_FILE, "plan: symbol ", bind->symbol,
                      " is used nowhere");
    bindings_.push_back({symbol, *given[slot], static_cast<size_t>(bind->dim)});
    is_bound[symbol] = true;
  }
  for (const Condition& condition : contents.conditions)
    checks_.push_back(
        {runtime::SizeExpr(condition.truth,
                           [&](std::string_view name) { return index_in(symbols_, name); }),
         condition.text});
  for (size_t i = 0; i < symbols_.size(); ++i)
    MLCC_STATUS_CHECK(is_bound[i], MLCC_INVALID_FILE, "plan: symbol ", symbols_[i].name,
                      " is no size of an input");
}

std::vector<int64_t> Ports::bind(std::span<const mlcc_tensor> inputs) const {
  MLCC_STATUS_CHECK(inputs.size() == inputs_.size(), MLCC_INVALID_ARGUMENT, "found ", inputs.size(),
                    " inputs, expected ", inputs_.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    inputs_[i].check_kind({"input ", inputs_[i].name()}, inputs[i]);
  std::vector<int64_t> values(symbols_.size(), 0);
  for (const Binding& binding : bindings_)
    values[binding.symbol] = inputs[binding.input].sizes[binding.dim];
  for (size_t i = 0; i < symbols_.size(); ++i)
    MLCC_STATUS_CHECK(values[i] >= symbols_[i].low && values[i] <= symbols_[i].high,
                      MLCC_INVALID_ARGUMENT, "size ", symbols_[i].shown, ": found ", values[i],
                      ", expected ", symbols_[i].low,
                      symbols_[i].high == kUnboundedHigh ? std::string(" or more")
                                                         : detail::join(" to ", symbols_[i].high));
  for (size_t i = 0; i < inputs.size(); ++i) check_sizes(inputs_[i], inputs[i], values);
  for (const Check& check : checks_)
    MLCC_STATUS_CHECK(check.truth.evaluate(values) == 1, MLCC_INVALID_ARGUMENT, "sizes: expected ",
                      check.text, symbols_in_words(values));
  return values;
}

std::string Ports::symbols_in_words(std::span<const int64_t> values) const {
  std::string text;
  for (size_t i = 0; i < symbols_.size(); ++i)
    text += (i == 0 ? ", where " : ", ") + symbols_[i].shown + " is " + std::to_string(values[i]);
  return text;
}

void Ports::check_sizes(const Port& port, const mlcc_tensor& tensor,
                        std::span<const int64_t> values) const {
  std::vector<int64_t> expected;
  port.sizes(values, expected);
  const std::span<const int64_t> found(tensor.sizes, static_cast<size_t>(tensor.rank));
  if (std::equal(found.begin(), found.end(), expected.begin())) return;
  throw StatusError(MLCC_INVALID_ARGUMENT,
                    detail::join("input ", port.name(), ": found sizes ", in_words(found),
                                 ", expected ", port.sizes_in_words(), symbols_in_words(values)));
}

std::string in_words(std::span<const int64_t> numbers) {
  std::string text = "[";
  for (const int64_t number : numbers)
    text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

}  // namespace mlcc::package
