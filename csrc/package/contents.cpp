#include "package/contents.h"

#include <map>
#include <utility>
#include <variant>

#include "runtime/plan_memory.h"
#include "runtime/size_expr.h"
#include "support/bytes.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

using runtime::SizeExpr;
using runtime::Slot;

// The kinds of steps, as they stand in files.
enum class StepKind : uint8_t { kAllocate, kLaunch, kView, kBind, kRelease, kSize };
constexpr uint8_t kNumStepKinds = 6;
constexpr uint8_t kNumInputKinds = 3;

class Encoder {
 public:
  std::string encode(const Contents& contents) {
    const runtime::ExecutablePlan& plan = contents.plan;
    MLCC_CHECK(plan.device.kind == DeviceKind::kCpu, "package: a plan of ", plan.device.str());
    MLCC_CHECK(plan.kept.empty() && plan.promises.empty(), "package: a plan with kept inputs");
    body_.add_count(plan.inputs.size());
    for (size_t i = 0; i < plan.inputs.size(); ++i) add(plan.inputs[i], contents.inputs[i]);
    body_.add_count(contents.symbols.size());
    for (const Symbol& symbol : contents.symbols) add(symbol);
    body_.add_count(contents.conditions.size());
    for (const Condition& condition : contents.conditions) {
      add(condition.truth);
      body_.add_text(condition.text);
    }
    body_.add_count(plan.outputs.size());
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      body_.add_text(contents.outputs[i].name);
      add(contents.outputs[i].sizes);
      add_slot(plan.outputs[i]);
    }
    body_.add_count(plan.written_inputs.size());
    for (const Slot slot : plan.written_inputs) add_slot(slot);
    body_.add_count(static_cast<uint64_t>(plan.num_slots));
    body_.add_count(plan.steps.size());
    for (const runtime::Step& step : plan.steps) {
      if (std::holds_alternative<runtime::LaunchStep>(step))
        entries_ = &contents.entries[launch_++];
      std::visit([this](const auto& one) { add(one); }, step);
    }
    ByteWriter whole;  // symbols, which the body numbered, stand before it
    whole.add_count(names_.size());
    for (const std::string& name : names_) whole.add_text(name);
    return whole.bytes() + body_.bytes();
  }

 private:
  int32_t symbol(std::string_view name) {
    const auto [found, is_new] =
        symbols_.try_emplace(std::string(name), static_cast<int32_t>(names_.size()));
    if (is_new) names_.emplace_back(name);
    return found->second;
  }

  void add(const Symbol& symbol) {
    body_.add_text(symbol.name);
    body_.add_text(symbol.shown);
    body_.add_number(symbol.low);
    body_.add_number(symbol.high);
  }

  void add_slot(Slot slot) { body_.add_count(static_cast<uint64_t>(slot)); }

  void add(const SymExpr& expr) {
    const SizeExpr size(expr, [this](std::string_view name) { return symbol(name); });
    body_.add_count(size.code().size());
    for (const SizeExpr::Instruction& instruction : size.code()) {
      body_.add_byte(static_cast<uint8_t>(instruction.kind));
      if (is_operand(instruction.kind)) body_.add_number(instruction.operand);
    }
  }

  void add(const std::vector<std::string>& texts) {
    body_.add_count(texts.size());
    for (const std::string& text : texts) body_.add_text(text);
  }

  void add(const std::vector<SymExpr>& exprs) {
    body_.add_count(exprs.size());
    for (const SymExpr& expr : exprs) add(expr);
  }

  void add(const runtime::TensorSpec& spec) {
    MLCC_CHECK(spec.device.kind == DeviceKind::kCpu, "package: a tensor on ", spec.device.str());
    body_.add_byte(static_cast<uint8_t>(spec.dtype));
    add(spec.shape);
    add(spec.strides);
  }

  void add(const runtime::InputSpec& spec, const Input& input) {
    body_.add_byte(static_cast<uint8_t>(input.kind));
    body_.add_text(input.name);
    add(input.sizes);
    body_.add_number(input.offset);
    body_.add_number(input.bytes);
    body_.add_byte(static_cast<uint8_t>(spec.is_size));
    if (spec.is_size)
      add(spec.size);
    else
      add(spec.spec);
  }

  void begin(StepKind kind) { body_.add_byte(static_cast<uint8_t>(kind)); }

  void add(const runtime::AllocateStep& step) {
    begin(StepKind::kAllocate);
    add_slot(step.slot);
    add(step.spec);
    body_.add_byte(static_cast<uint8_t>(step.arena));
  }

  void add(const runtime::LaunchStep& step) {
    begin(StepKind::kLaunch);
    body_.add_text(step.label);
    body_.add_text(step.source);
    body_.add_count(step.buffers.size());
    for (const Slot slot : step.buffers) add_slot(slot);
    add(step.sizes);
    body_.add_count(step.phases.size());
    for (size_t i = 0; i < step.phases.size(); ++i) {
      add(step.phases[i].extent);
      add(step.phases[i].grain);
      body_.add_number((*entries_)[i]);
    }
    body_.add_count(step.errors.size());
    for (const runtime::KernelError& error : step.errors) {
      body_.add_number(error.code);
      body_.add_text(error.exception);
      body_.add_text(error.text);
    }
    body_.add_byte(static_cast<uint8_t>(step.beside));
    body_.add_byte(static_cast<uint8_t>(step.in_turns));
  }

  void add(const runtime::ExternStep& step) {
    throw UnsupportedError(detail::join("package: a call of ", step.op));
  }

  void add(const runtime::ViewStep& step) {
    begin(StepKind::kView);
    add_slot(step.slot);
    add_slot(step.base);
    add(step.spec);
    add(step.offset);
  }

  void add(const runtime::BindStep& step) {
    begin(StepKind::kBind);
    body_.add_count(static_cast<uint64_t>(symbol(step.symbol)));
    add_slot(step.slot);
    body_.add_number(step.dim);
  }

  void add(const runtime::ReleaseStep& step) {
    begin(StepKind::kRelease);
    body_.add_count(step.slots.size());
    for (const Slot slot : step.slots) add_slot(slot);
  }

  void add(const runtime::SizeStep& step) {
    begin(StepKind::kSize);
    add_slot(step.slot);
    add(step.size);
  }

  static bool is_operand(SizeExpr::Kind kind) {
    return kind == SizeExpr::Kind::kConstant || kind == SizeExpr::Kind::kSymbol;
  }

  ByteWriter body_;
  std::map<std::string, int32_t> symbols_;
  std::vector<std::string> names_;
  size_t launch_ = 0;
  const std::vector<int64_t>* entries_ = nullptr;  // of the launch that is added
};

class Decoder {
 public:
  Decoder(std::string_view bytes, int64_t code_bytes, int64_t weight_bytes)
      : in_(bytes, "plan"), code_bytes_(code_bytes), weight_bytes_(weight_bytes) {}

  Contents decode() {
    names_.resize(in_.length());
    for (std::string& name : names_) name = in_.text();
    const size_t num_inputs = in_.length();
    for (size_t i = 0; i < num_inputs; ++i) read_input();
    contents_.symbols.resize(in_.length());
    for (Symbol& symbol : contents_.symbols) symbol = read_symbol();
    contents_.conditions.resize(in_.length());
    for (Condition& condition : contents_.conditions) {
      condition.truth = size();
      condition.text = in_.text();
    }
    read_outputs();
    plan_.written_inputs = slots();
    plan_.num_slots = in_.index();
    const size_t num_steps = in_.length();
    for (size_t i = 0; i < num_steps; ++i) plan_.steps.push_back(step());
    in_.expect_end();
    if (most_slot_ >= plan_.num_slots || static_cast<int64_t>(num_inputs) > plan_.num_slots)
      in_.fail("a slot that the plan has not");
    for (const Slot slot : plan_.written_inputs)
      if (static_cast<size_t>(slot) >= num_inputs) in_.fail("what is written is no input");
    return std::move(contents_);
  }

 private:
  Slot slot() {
    const Slot slot = in_.index();
    most_slot_ = std::max(most_slot_, slot);
    return slot;
  }

  std::vector<Slot> slots() {
    std::vector<Slot> slots(in_.length());
    for (Slot& one : slots) one = slot();
    return slots;
  }

  uint8_t one_of(uint8_t count, std::string_view what) {
    const uint8_t value = in_.byte();
    if (value >= count) in_.fail(detail::join("no ", what, " ", int{value}));
    return value;
  }

  std::string_view name_of(int64_t symbol) {
    if (symbol < 0 || symbol >= static_cast<int64_t>(names_.size()))
      in_.fail("a symbol that the plan has not");
    return names_[static_cast<size_t>(symbol)];
  }

  SymExpr size() {
    SizeExpr::Code code(in_.length());
    for (SizeExpr::Instruction& instruction : code) {
      instruction.kind = static_cast<SizeExpr::Kind>(one_of(SizeExpr::kNumKinds, "operation"));
      const bool is_operand = instruction.kind == SizeExpr::Kind::kConstant ||
                              instruction.kind == SizeExpr::Kind::kSymbol;
      instruction.operand = is_operand ? in_.number() : 0;
    }
    return SizeExpr::expression_of(code, [this](int64_t symbol) { return name_of(symbol); });
  }

  std::vector<std::string> texts() {
    std::vector<std::string> texts(in_.length());
    for (std::string& text : texts) text = in_.text();
    return texts;
  }

  std::vector<SymExpr> sizes() {
    std::vector<SymExpr> sizes(in_.length());
    for (SymExpr& one : sizes) one = size();
    return sizes;
  }

  runtime::TensorSpec spec() {
    runtime::TensorSpec spec{};
    spec.dtype = static_cast<DType>(one_of(kNumDTypes, "dtype"));
    spec.shape = sizes();
    spec.strides = sizes();
    if (spec.strides.size() != spec.shape.size()) in_.fail("a tensor without strides");
    return spec;
  }

  void read_input() {
    Input input;
    input.kind = static_cast<InputKind>(one_of(kNumInputKinds, "kind of input"));
    input.name = in_.text();
    input.sizes = texts();
    input.offset = in_.number();
    input.bytes = in_.number();
    runtime::InputSpec about{};
    about.is_size = in_.flag();
    if (about.is_size)
      about.size = size();
    else
      about.spec = spec();
    if (input.kind == InputKind::kWeight) check_weight(input, about);
    contents_.inputs.push_back(std::move(input));
    plan_.inputs.push_back(std::move(about));
  }

  void check_weight(const Input& input, const runtime::InputSpec& about) {
    if (input.offset < 0 || input.bytes < 0 || input.offset > weight_bytes_ ||
        input.bytes > weight_bytes_ - input.offset)
      in_.fail(detail::join("weight ", input.name, " lies outside of the weights"));
    if (about.is_size || !are_constant(about.spec.shape) || !are_constant(about.spec.strides))
      in_.fail(detail::join("weight ", input.name, " has no fixed size"));
    int64_t elements = 1;  // from the first to behind the last one
    for (size_t d = 0; d < about.spec.shape.size(); ++d) {
      const int64_t count = *about.spec.shape[d].as_constant();
      const int64_t stride = *about.spec.strides[d].as_constant();
      if (count < 0 || stride < 0) in_.fail(detail::join("weight ", input.name, " has a bad size"));
      if (count == 0) return;
      int64_t reach = 0;
      if (__builtin_mul_overflow(count - 1, stride, &reach) ||
          __builtin_add_overflow(elements, reach, &elements))
        in_.fail(detail::join("weight ", input.name, " is too large"));
    }
    if (elements > input.bytes / dtype_size(about.spec.dtype))
      in_.fail(detail::join("weight ", input.name, " has fewer bytes than its size says"));
  }

  Symbol read_symbol() {
    Symbol symbol;
    symbol.name = in_.text();
    symbol.shown = in_.text();
    symbol.low = in_.number();
    symbol.high = in_.number();
    return symbol;
  }

  void read_outputs() {
    const size_t count = in_.length();
    for (size_t i = 0; i < count; ++i) {
      Output& output = contents_.outputs.emplace_back();
      output.name = in_.text();
      output.sizes = texts();
      plan_.outputs.push_back(slot());
    }
  }

  runtime::Step step() {
    switch (static_cast<StepKind>(one_of(kNumStepKinds, "kind of step"))) {
    case StepKind::kAllocate: {
      const Slot at = slot();
      runtime::TensorSpec about = spec();
      return runtime::AllocateStep{at, std::move(about), in_.flag()};
    }
    case StepKind::kLaunch: return launch();
    case StepKind::kView: {
      runtime::ViewStep view{};
      view.slot = slot();
      view.base = slot();
      view.spec = spec();
      view.offset = size();
      return view;
    }
    case StepKind::kBind: {
      const std::string name(name_of(in_.index()));
      const Slot at = slot();
      const int64_t dim = in_.number();
      if (dim < -1 || dim >= kMostDimensions) in_.fail("a size of no dimension");
      return runtime::BindStep{name, at, static_cast<int>(dim)};
    }
    case StepKind::kRelease: return runtime::ReleaseStep{slots()};
    case StepKind::kSize: {
      const Slot at = slot();
      return runtime::SizeStep{at, size()};
    }
    }
    MLCC_UNREACHABLE("a kind of step that is none");
  }

  runtime::LaunchStep launch() {
    runtime::LaunchStep launch{};
    launch.label = in_.text();
    launch.source = in_.text();
    launch.buffers = slots();
    launch.sizes = sizes();
    std::vector<int64_t>& entries = contents_.entries.emplace_back(in_.length());
    for (int64_t& entry : entries) {
      runtime::PhasePlan phase{};
      phase.extent = size();
      phase.grain = size();
      launch.phases.push_back(std::move(phase));
      entry = in_.number();
      if (entry < 0 || entry >= code_bytes_) in_.fail("a kernel lies outside of the code");
    }
    const size_t num_errors = in_.length();
    for (size_t i = 0; i < num_errors; ++i) {
      runtime::KernelError error{};
      error.code = in_.number();
      error.exception = in_.text();
      error.text = in_.text();
      launch.errors.push_back(std::move(error));
    }
    launch.beside = in_.flag();
    launch.in_turns = in_.flag();
    return launch;
  }

  static constexpr int64_t kMostDimensions = 64;

  ByteReader in_;
  const int64_t code_bytes_, weight_bytes_;
  std::vector<std::string> names_;
  Contents contents_;
  runtime::ExecutablePlan& plan_ = contents_.plan;
  Slot most_slot_ = -1;
};

}  // namespace

const runtime::TensorSpec* find_output_spec(const runtime::ExecutablePlan& plan, Slot slot) {
  for (const runtime::Step& step : plan.steps) {
    if (const auto* allocate = std::get_if<runtime::AllocateStep>(&step))
      if (allocate->slot == slot) return allocate->arena ? nullptr : &allocate->spec;
    if (const auto* view = std::get_if<runtime::ViewStep>(&step))
      if (view->slot == slot) return &view->spec;
  }
  const auto index = static_cast<size_t>(slot);
  return index < plan.inputs.size() && !plan.inputs[index].is_size ? &plan.inputs[index].spec
                                                                   : nullptr;
}

std::string encode_contents(const Contents& contents) { return Encoder().encode(contents); }

Contents decode_contents(std::string_view bytes, int64_t code_bytes, int64_t weight_bytes) {
  return Decoder(bytes, code_bytes, weight_bytes).decode();
}

}  // namespace mlcc::package
