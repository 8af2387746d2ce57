#include "package/refit.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "package/format.h"
#include "package/layouts.h"
#include "package/runner.h"
#include "package/status.h"
#include "runtime/plan_memory.h"

namespace mlcc::package {
namespace {

Port port_of(const Program& program, size_t input, const std::string& name) {
  const runtime::InputSpec& spec = program.executable().plan().inputs[input];
  MLCC_STATUS_CHECK(!spec.is_size && are_constant(spec.spec.shape) &&
                        are_constant(spec.spec.strides),
                    MLCC_INVALID_FILE, "recipes: ", name, " has no fixed size");
  return Port(name, static_cast<runtime::Slot>(input), spec.spec, {}, {});
}

bool are_alike(const Port& a, const Port& b) {
  const std::span<const int64_t> sizes = a.known_sizes();
  return a.dtype() == b.dtype() && std::ranges::equal(sizes, b.known_sizes()) &&
         (is_empty(sizes) || are_equal_strides(sizes, a.known_strides(), b.known_strides()));
}

mlcc_tensor described(const Port& port, const char* data) {
  return {const_cast<char*>(data), static_cast<mlcc_dtype>(port.dtype()),
          static_cast<int32_t>(port.rank()), port.known_sizes().data(),
          port.known_strides().data()};
}

}  // namespace

Refit::Refit(Recipes recipes, const Program& program, const char* code)
    : program_(program), recipes_(std::move(recipes.recipes)) {
  for (Contents& contents : recipes.programs)
    programs_.push_back(std::make_unique<const Program>(std::move(contents), code));
  for (const WeightName& weight : recipes.names) {
    if (weight.input == WeightName::kUnread)
      unread_.push_back(weight.name);
    else
      weights_.push_back(port_of(program, static_cast<size_t>(weight.input), weight.name));
  }
  for (const Recipe& recipe : recipes_) {
    const Ports& ports = programs_[recipe.program]->ports();
    bool fits = program.inputs()[recipe.input].kind == InputKind::kWeight &&
                are_alike(port_of(program, recipe.input, "a weight"), ports.outputs()[0]);
    for (size_t i = 0; i < recipe.sources.size(); ++i)
      fits = fits && are_alike(port_of(program, recipe.sources[i], "a weight"), ports.inputs()[i]);
    MLCC_STATUS_CHECK(fits, MLCC_INVALID_FILE, "recipes: input ", recipe.input,
                      " is not what its recipe makes");
  }
}

// One exchange: of what is given and of all that follows from it.
class Refit::Replacement {
 public:
  Replacement(const Refit& refit, const WeightsPtr& current, std::span<const mlcc_weight> given)
      : refit_(refit), current_(current), given_(current->data.size()) {
    for (const mlcc_weight& weight : given) take(weight);
    for (const Recipe& recipe : refit.recipes_)
      if (std::any_of(recipe.sources.begin(), recipe.sources.end(),
                      [&](size_t source) { return given_[source].has_value(); }))
        recipes_.push_back(&recipe);
    for (const Recipe* recipe : recipes_)
      for (const size_t source : recipe->sources) check_known(source);
  }

  WeightsPtr make() {
    const WeightMemory memory(lay_out());
    for (size_t i = 0; i < given_.size(); ++i)
      if (given_[i] && offsets_[i]) copy_into(i, memory.data() + *offsets_[i]);
    for (const Recipe* recipe : recipes_) run(*recipe, memory.data() + *offsets_[recipe->input]);
    auto made = std::make_shared<Weights>(*current_);
    const Memory finished = memory.finished();
    for (size_t i = 0; i < offsets_.size(); ++i)
      if (offsets_[i]) made->data[i] = Memory(finished, finished.get() + *offsets_[i]);
    return made;
  }

 private:
  void take(const mlcc_weight& weight) {
    MLCC_STATUS_CHECK(weight.name != nullptr, MLCC_INVALID_ARGUMENT, "weight: its name is null");
    const Port* port = refit_.find(weight.name);
    if (port == nullptr) return;
    const What what{"weight ", port->name()};
    port->check_kind(what, weight.tensor);
    const std::span<const int64_t> found(weight.tensor.sizes, port->rank());
    const std::span<const int64_t> expected = port->known_sizes();
    MLCC_STATUS_CHECK(std::ranges::equal(found, expected), MLCC_INVALID_ARGUMENT, what,
                      ": found sizes ", in_words(found), ", expected ", in_words(expected));
    check_data(what, port->dtype(), weight.tensor, expected);
    check_fits(what, *port, weight.tensor);
    std::optional<mlcc_tensor>& place = given_[static_cast<size_t>(port->slot())];
    MLCC_STATUS_CHECK(!place || elements(*place, *port) == elements(weight.tensor, *port),
                      MLCC_INVALID_ARGUMENT, what,
                      ": the model knows it by two names, which are given with different data");
    place = weight.tensor;
  }

  // A weight that was expanded has one place for elements that were equal.
  static void check_fits(const What& what, const Port& port, const mlcc_tensor& tensor) {
    const std::span<const int64_t> sizes = port.known_sizes(), strides = port.known_strides();
    if (is_empty(sizes) || is_injective(sizes, strides)) return;
    std::string kept(
        static_cast<size_t>(runtime::storage_bytes(sizes, strides, dtype_size(port.dtype()))),
        '\0');
    copy(tensor, port, strides, kept.data());
    MLCC_STATUS_CHECK(elements(described(port, kept.data()), port) == elements(tensor, port),
                      MLCC_INVALID_ARGUMENT, what,
                      ": the model has one place for elements that are given with different "
                      "values, its strides are ",
                      in_words(strides));
  }

  static void copy(const mlcc_tensor& from, const Port& port, std::span<const int64_t> strides,
                   char* to) {
    const std::span<const int64_t> sizes = port.known_sizes();
    if (!is_empty(sizes))
      copy_strided(to, strides, static_cast<const char*>(from.data), strides_of(from, sizes), sizes,
                   dtype_size(port.dtype()));
  }

  // In row-major order.
  static std::string elements(const mlcc_tensor& tensor, const Port& port) {
    int64_t bytes = dtype_size(port.dtype());
    for (const int64_t size : port.known_sizes()) bytes *= size;
    std::string all(static_cast<size_t>(bytes), '\0');
    copy(tensor, port, strides_of(mlcc_tensor{}, port.known_sizes()), all.data());
    return all;
  }

  void copy_into(size_t input, char* to) const {
    const Port port = port_of(refit_.program_, input, "a weight");
    copy(*given_[input], port, port.known_strides(), to);
  }

  bool is_in_file(size_t input) const {
    return refit_.program_.inputs()[input].kind == InputKind::kWeight;
  }

  void check_known(size_t source) const {
    MLCC_STATUS_CHECK(given_[source] || is_in_file(source), MLCC_INVALID_ARGUMENT, "weight ",
                      refit_.program_.inputs()[source].name,
                      ": expected too, since it is packed together with others that are given");
  }

  // The bytes of all that is new.
  int64_t lay_out() {
    offsets_.resize(given_.size());
    int64_t end = 0;
    const auto place = [&](size_t input) {
      if (offsets_[input]) return;
      offsets_[input] = end;
      const int64_t unit = kWeightAlignment;
      end += (refit_.program_.inputs()[input].bytes + unit - 1) / unit * unit;
    };
    for (size_t i = 0; i < given_.size(); ++i)
      if (given_[i] && is_in_file(i)) place(i);
    for (const Recipe* recipe : recipes_) place(recipe->input);
    return end;
  }

  void run(const Recipe& recipe, char* to) const {
    const Program& program = *refit_.programs_[recipe.program];
    const std::vector<Port>& ports = program.ports().inputs();
    std::vector<std::string> copies(ports.size());  // of what is given in another layout
    std::vector<mlcc_tensor> inputs;
    for (size_t i = 0; i < ports.size(); ++i)
      inputs.push_back(described(ports[i], in_layout(recipe.sources[i], ports[i], copies[i])));
    mlcc_tensor output = described(program.ports().outputs()[0], to);
    Runner(program, {}).run(std::make_shared<Weights>(), inputs, {&output, 1}, nullptr);
  }

  // Of a source, whose elements lie as its recipe expects.
  const char* in_layout(size_t source, const Port& port, std::string& copied) const {
    if (!given_[source]) return current_->data[source].get();
    const mlcc_tensor& tensor = *given_[source];
    const std::span<const int64_t> sizes = port.known_sizes();
    const std::span<const int64_t> strides = port.known_strides();
    if (is_empty(sizes) || are_equal_strides(sizes, strides_of(tensor, sizes), strides))
      return static_cast<const char*>(tensor.data);
    const int64_t bytes = runtime::storage_bytes(sizes, strides, dtype_size(port.dtype()));
    copied.resize(static_cast<size_t>(bytes));
    copy(tensor, port, strides, copied.data());
    return copied.data();
  }

  const Refit& refit_;
  const WeightsPtr& current_;
  std::vector<std::optional<mlcc_tensor>> given_;  // by input
  std::vector<const Recipe*> recipes_;             // that one of these is a source of
  std::vector<std::optional<int64_t>> offsets_;    // of inputs that change, in the new memory
};

const Port* Refit::find(std::string_view name) const {
  for (const Port& port : weights_)
    if (port.name() == name) return &port;
  MLCC_STATUS_CHECK(std::find(unread_.begin(), unread_.end(), name) != unread_.end(),
                    MLCC_INVALID_ARGUMENT, "weight ", name, ": the model has none of that name");
  return nullptr;
}

WeightsPtr Refit::refitted(const WeightsPtr& current, std::span<const mlcc_weight> given) const {
  return Replacement(*this, current, given).make();
}

}  // namespace mlcc::package
