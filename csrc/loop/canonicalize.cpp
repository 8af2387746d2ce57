#include <string>
#include <unordered_map>

#include "loop/mutator.h"
#include "loop/text.h"

namespace mlcc::loop {
namespace {

// Names everything by its place in the text. Sizes are defined first, then buffers, then values; a
// name is given where the walk meets it first, which is where it is defined.
class Renamer : public Mutator {
 public:
  Renamer(Arena& arena, const Kernel& kernel) : Mutator(arena) {
    for (const Variable* size : kernel.sizes)
      variables_.emplace(size, named(*size, "s" + std::to_string(variables_.size())));
  }

 protected:
  const Variable* replace(const Variable* variable) override {
    const auto found = variables_.find(variable);
    if (found != variables_.end()) return found->second;
    return variables_.emplace(variable, named(*variable, std::to_string(next_value_++)))
        .first->second;
  }

  const Buffer* replace(const Buffer* buffer) override {
    const auto found = buffers_.find(buffer);
    if (found != buffers_.end()) return found->second;
    Buffer renamed = *buffer;
    renamed.name = "b" + std::to_string(buffers_.size());
    renamed.shape = mutate(buffer->shape);
    renamed.strides = mutate(buffer->strides);
    return buffers_.emplace(buffer, arena_.make_buffer(std::move(renamed))).first->second;
  }

 private:
  const Variable* named(const Variable& variable, const std::string& name) {
    return Variable::make(arena_, variable.dtype, name);
  }

  std::unordered_map<const Variable*, const Variable*> variables_;
  std::unordered_map<const Buffer*, const Buffer*> buffers_;
  size_t next_value_ = 0;
};

}  // namespace

Kernel canonicalize(Arena& arena, const Kernel& kernel) {
  Kernel canonical = Renamer(arena, kernel).mutate(kernel);
  canonical.name = "k";
  return canonical;
}

}  // namespace mlcc::loop
