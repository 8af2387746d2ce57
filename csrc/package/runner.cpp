#include "package/runner.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "package/layouts.h"
#include "package/status.h"
#include "runtime/arena_plan.h"
#include "runtime/plan_memory.h"

namespace mlcc::package {
namespace {

using runtime::Slot;

constexpr size_t kAlignment = runtime::kArenaAlignment;

void* allocate_by_default(void*, size_t bytes, size_t alignment) {
  return ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
}
void release_by_default(void*, void* data, size_t) {
  ::operator delete(data, std::align_val_t{kAlignment});
}

mlcc_context_options completed(mlcc_context_options options) {
  MLCC_STATUS_CHECK((options.allocator.allocate == nullptr) ==
                        (options.allocator.release == nullptr),
                    MLCC_INVALID_ARGUMENT, "allocator: one of its functions is null");
  if (options.allocator.allocate == nullptr)
    options.allocator = {allocate_by_default, release_by_default, nullptr};
  return options;
}

// Memory of an allocator that grows and is used again.
class Buffer {
 public:
  explicit Buffer(const mlcc_allocator& allocator) : allocator_(&allocator) {}
  Buffer(Buffer&& other) noexcept
      : allocator_(other.allocator_), data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { clear(); }

  char* at_least(int64_t bytes) {
    const auto wanted = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    if (wanted > bytes_) {
      clear();
      data_ = static_cast<char*>(allocator_->allocate(allocator_->user, wanted, kAlignment));
      MLCC_STATUS_CHECK(data_ != nullptr, MLCC_OUT_OF_MEMORY, "no memory for ", wanted, " bytes");
      bytes_ = wanted;
    }
    return data_;
  }

 private:
  void clear() {
    if (data_ != nullptr) allocator_->release(allocator_->user, data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  const mlcc_allocator* allocator_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

// The tensors of a call. What it has grown to stays for the next one.
class Runner::MemoryHost final : public runtime::Host {
 public:
  MemoryHost(const Program& program, const mlcc_context_options& options)
      : program_(program), options_(options), arena_(options.allocator),
        slots_(static_cast<size_t>(program.executable().plan().num_slots)) {
    for (size_t i = 0; i < slots_.size(); ++i) buffers_.emplace_back(options.allocator);
  }

  void begin(WeightsPtr weights, std::span<const mlcc_tensor> inputs,
             std::span<mlcc_tensor> outputs) {
    if (placed_.lock() != weights) place(weights);
    weights_ = std::move(weights);
    resolve(inputs);
    check_count(outputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) set_input(program_.ports().inputs()[i], inputs[i]);
    for (size_t i = 0; i < outputs.size(); ++i) check_output(i, outputs[i]);
    outputs_ = outputs;
    is_arena_lent_ = false;
  }

  // Says what sizes outputs have for these inputs.
  void infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs) {
    resolve(inputs);
    check_count(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = described(i, nullptr);
  }

  // Puts results where the caller wants them, or says where they are.
  void finish() {
    bool is_seen = false;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Port& port = program_.ports().outputs()[i];
      const Layout& layout = layouts_[i];
      mlcc_tensor& output = outputs_[i];
      const Place& place = slots_[static_cast<size_t>(port.slot())];
      if (output.data == nullptr) {
        output = described(i, place.data);
        is_seen = true;
      } else if (output.data != place.data && !is_empty(layout.sizes)) {
        copy_strided(static_cast<char*>(output.data), layout.wanted_strides, place.data,
                     layout.strides, layout.sizes, dtype_size(port.dtype()));
      }
    }
    if (!is_seen) weights_.reset();
  }

  void* data(Slot slot) override { return slots_[static_cast<size_t>(slot)].data; }

  int64_t tensor_size(Slot slot, int dim) override {
    const std::vector<int64_t>& sizes = slots_[static_cast<size_t>(slot)].sizes;
    MLCC_STATUS_CHECK(static_cast<size_t>(dim) < sizes.size(), MLCC_INVALID_FILE, "slot ", slot,
                      " has no dimension ", dim);
    return sizes[static_cast<size_t>(dim)];
  }
  int64_t size(Slot slot) override { return slots_[static_cast<size_t>(slot)].size; }
  void set_size(Slot slot, int64_t value) override {
    slots_[static_cast<size_t>(slot)].size = value;
  }

  void allocate(Slot slot, DType dtype, std::span<const int64_t> shape,
                std::span<const int64_t> strides, Device) override {
    Place& place = slots_[static_cast<size_t>(slot)];
    place.sizes.assign(shape.begin(), shape.end());
    place.data = caller_memory(slot, shape, strides);
    if (place.data == nullptr)
      place.data = buffers_[static_cast<size_t>(slot)].at_least(
          runtime::storage_bytes(shape, strides, dtype_size(dtype)));
    place.element_bytes = dtype_size(dtype);
  }

  char* take_arena(int64_t bytes) override {
    MLCC_STATUS_CHECK(!is_arena_lent_, MLCC_INVALID_FILE, "plan: two arenas at a time");
    is_arena_lent_ = true;
    if (options_.arena == nullptr) return arena_.at_least(bytes);
    MLCC_STATUS_CHECK(static_cast<size_t>(bytes) <= options_.arena_bytes, MLCC_INVALID_ARGUMENT,
                      "arena: found ", options_.arena_bytes, " bytes, expected ", bytes);
    return static_cast<char*>(options_.arena);
  }
  void give_back_arena(char*) override { is_arena_lent_ = false; }
  void* workspace(int64_t) override { MLCC_UNREACHABLE("a device's memory in a package"); }

  void make_view(Slot slot, Slot base, std::span<const int64_t> shape, std::span<const int64_t>,
                 int64_t offset) override {
    const Place& from = slots_[static_cast<size_t>(base)];
    Place& place = slots_[static_cast<size_t>(slot)];
    place.sizes.assign(shape.begin(), shape.end());
    place.data = from.data + offset * from.element_bytes;
    place.element_bytes = from.element_bytes;
  }

  void call_extern(const runtime::ExternStep& step, size_t,
                   const std::function<int64_t(const SymExpr&)>&) override {
    MLCC_UNREACHABLE("a call of ", step.op, " in a package");
  }

  void release(Slot) override {}  // memory stays for the next call

  [[noreturn]] void raise(const runtime::KernelError& error, const std::string& source) override {
    throw StatusError(MLCC_CHECK_FAILED,
                      source.empty() ? error.text : detail::join(error.text, " (", source, ")"));
  }

 private:
  struct Place {
    char* data = nullptr;
    int64_t element_bytes = 0;
    std::vector<int64_t> sizes;
    int64_t size = 0;  // of a size
  };

  // An output's, in the call under way.
  struct Layout {
    std::vector<int64_t> sizes, strides;
    std::vector<int64_t> wanted_strides;  // where the caller places it
  };

  void place(const WeightsPtr& weights) {
    const std::vector<runtime::InputSpec>& specs = program_.executable().plan().inputs;
    for (size_t i = 0; i < weights->data.size(); ++i) {
      if (weights->data[i] == nullptr) continue;
      slots_[i].data = const_cast<char*>(weights->data[i].get());
      slots_[i].element_bytes = dtype_size(specs[i].spec.dtype);
    }
    placed_ = weights;
  }

  void resolve(std::span<const mlcc_tensor> inputs) {
    symbols_ = program_.ports().bind(inputs);
    layouts_.resize(program_.ports().outputs().size());
    for (size_t i = 0; i < layouts_.size(); ++i) {
      program_.ports().outputs()[i].sizes(symbols_, layouts_[i].sizes);
      program_.ports().outputs()[i].strides(symbols_, layouts_[i].strides);
    }
  }

  void check_count(size_t num_outputs) const {
    MLCC_STATUS_CHECK(num_outputs == layouts_.size(), MLCC_INVALID_ARGUMENT, "found ", num_outputs,
                      " outputs, expected ", layouts_.size());
  }

  mlcc_tensor described(size_t index, void* data) const {
    const Layout& layout = layouts_[index];
    return {data, static_cast<mlcc_dtype>(program_.ports().outputs()[index].dtype()),
            static_cast<int32_t>(layout.sizes.size()), layout.sizes.data(), layout.strides.data()};
  }

  void set_input(const Port& port, const mlcc_tensor& tensor) {
    const What what{"input ", port.name()};
    Place& place = slots_[static_cast<size_t>(port.slot())];
    port.sizes(symbols_, place.sizes);
    check_data(what, port.dtype(), tensor, place.sizes);
    const std::vector<int64_t> strides = strides_of(tensor, place.sizes);
    std::vector<int64_t> expected;
    port.strides(symbols_, expected);
    MLCC_STATUS_CHECK(are_equal_strides(place.sizes, strides, expected) || is_empty(place.sizes),
                      MLCC_INVALID_ARGUMENT, what, ": found strides ", in_words(strides),
                      ", expected ", in_words(expected));
    place.data = static_cast<char*>(tensor.data);
    place.element_bytes = dtype_size(port.dtype());
  }

  void check_output(size_t index, const mlcc_tensor& tensor) {
    if (tensor.data == nullptr) return;
    const Port& port = program_.ports().outputs()[index];
    Layout& layout = layouts_[index];
    const What what{"output ", port.name()};
    port.check_kind(what, tensor);
    const std::span<const int64_t> sizes(tensor.sizes, port.rank());
    MLCC_STATUS_CHECK(std::equal(sizes.begin(), sizes.end(), layout.sizes.begin()),
                      MLCC_INVALID_ARGUMENT, what, ": found sizes ", in_words(sizes), ", expected ",
                      in_words(layout.sizes));
    check_data(what, port.dtype(), tensor, sizes);
    layout.wanted_strides = strides_of(tensor, sizes);
    MLCC_STATUS_CHECK(is_injective(sizes, layout.wanted_strides) || is_empty(sizes),
                      MLCC_INVALID_ARGUMENT, what, ": elements overlap at strides ",
                      in_words(layout.wanted_strides));
  }

  // Where the caller wants what this slot becomes, laid out as the program does.
  char* caller_memory(Slot slot, std::span<const int64_t> sizes, std::span<const int64_t> strides) {
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (program_.ports().outputs()[i].slot() == slot && outputs_[i].data != nullptr &&
          are_equal_strides(sizes, strides, layouts_[i].wanted_strides))
        return static_cast<char*>(outputs_[i].data);
    return nullptr;
  }

  const Program& program_;
  const mlcc_context_options& options_;
  Buffer arena_;
  bool is_arena_lent_ = false;
  std::vector<Place> slots_;
  std::weak_ptr<const Weights> placed_;  // where the slots of weights point
  WeightsPtr weights_;  // of the call, and as long as the caller may look at results that lie there
  std::vector<Buffer> buffers_;  // of slots, where they lie in memory of ours
  std::span<mlcc_tensor> outputs_;
  std::vector<int64_t> symbols_;  // of the call, the executable's
  std::vector<Layout> layouts_;   // of outputs
};

Runner::Runner(const Program& program, const mlcc_context_options& options)
    : program_(program), options_(completed(options)) {
  MLCC_STATUS_CHECK(reinterpret_cast<uintptr_t>(options_.arena) % kAlignment == 0,
                    MLCC_INVALID_ARGUMENT, "arena: not aligned to ", kAlignment, " bytes");
  host_ = std::make_unique<MemoryHost>(program_, options_);
}

Runner::~Runner() = default;

void Runner::infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs) {
  host_->infer(inputs, outputs);
}

void Runner::run(WeightsPtr weights, std::span<const mlcc_tensor> inputs,
                 std::span<mlcc_tensor> outputs, const runtime::ParallelFor& parallel_for) {
  host_->begin(std::move(weights), inputs, outputs);
  program_.executable().run(*host_, parallel_for);
  host_->finish();
}

}  // namespace mlcc::package
