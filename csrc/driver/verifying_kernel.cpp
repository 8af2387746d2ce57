#include "driver/verifying_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "driver/comparison.h"
#include "driver/dump.h"
#include "driver/session.h"
#include "graph/text.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

using graph::Value;

constexpr int64_t kSamplePeriod = 100;  // runs, of which `sample` checks one
// Elements of all nodes together: some seconds for the interpreter.
constexpr int64_t kMostElements = 1 << 24;
// Evaluations with other roundings, and more of them before a kernel is called wrong: of few
// elements that cancel, two may show nothing.
constexpr uint64_t kRoundings = 2;
constexpr uint64_t kMoreRoundings = 8;

bool holds_special(const HostTensor& tensor) {
  if (!is_float(tensor.dtype)) return false;
  const Elements elements(tensor);
  for (int64_t i = 0; i < elements.size(); ++i)
    if (!std::isfinite(elements[i])) return true;
  return false;
}

}  // namespace

Verification parse_verification(std::string_view name) {
  if (name.empty() || name == "off" || name == "0") return Verification::kOff;
  if (name == "first" || name == "1") return Verification::kFirst;
  if (name == "sample") return Verification::kSample;
  if (name == "always") return Verification::kAlways;
  if (name == "nan") return Verification::kNan;
  throw Error(detail::join("option verify: expected off, first, sample, always or nan, found '",
                           name, "'"));
}

std::optional<size_t> VerifiedLaunch::buffer_of(const Value* value) const {
  const auto memory = in_place.find(value);
  const auto place =
      std::find(buffers.begin(), buffers.end(), memory == in_place.end() ? value : memory->second);
  if (place == buffers.end()) return std::nullopt;
  return static_cast<size_t>(place - buffers.begin());
}

std::string why_not_verified(const VerifiedLaunch& launch, const Options& options) {
  if (launch.kernel->is_asynchronous() && !emulates_gpu(options))
    return "its memory is not the host's";
  for (const auto* values : {&launch.reference->inputs(), &launch.reference->outputs()})
    for (const Value* value : *values)
      if (!launch.buffer_of(value))
        return detail::join("its nodes need %", value->id(), ", the kernel does not");
  return "";
}

// What a launch was given.
struct VerifyingKernel::Call {
  const runtime::KernelArgs& args;
  std::span<const int64_t> ranges;
  const runtime::LaunchContext& context;
  std::span<const int64_t> sizes;  // of the reference
};

VerifyingKernel::VerifyingKernel(VerifiedLaunch launch, const Options& options)
    : Kernel(launch.kernel->name()), launch_(std::move(launch)), options_(options),
      mode_(parse_verification(options.verify)) {}

bool VerifyingKernel::is_due() const {
  const int64_t run = num_runs_.fetch_add(1, std::memory_order_relaxed);
  switch (mode_) {
  case Verification::kOff: return false;
  case Verification::kFirst: return true;  // until one is done
  case Verification::kSample: return run % kSamplePeriod == 0;
  case Verification::kAlways:
  case Verification::kNan: return true;
  }
  MLCC_UNREACHABLE("verification ", static_cast<int>(mode_));
}

runtime::CheckFailure VerifyingKernel::run(const runtime::KernelArgs& args,
                                           std::span<const int64_t> ranges,
                                           const runtime::LaunchContext& context) const {
  const bool is_done = is_checked_.load(std::memory_order_acquire);
  if (is_done || (!is_due() && !is_wrong_.load(std::memory_order_acquire)))
    return launch_.kernel->run(args, ranges, context);
  return verify({args,
                 ranges,
                 context,
                 {args.sizes + launch_.num_kernel_sizes, launch_.reference->symbols().size()}});
}

runtime::CheckFailure VerifyingKernel::verify(const Call& call) const {
  std::string fault;
  runtime::CheckFailure failure;
  {
    const std::lock_guard lock(mutex_);
    const std::vector<HostTensor> inputs = copy(call, launch_.reference->inputs());
    if (is_wrong_) {
      const ReferenceRun reference = launch_.reference->run(inputs, call.sizes, 0);
      if (!reference.failed_check) {
        write_outputs(call, reference.outputs);
        return {};
      }
    }
    failure = launch_.kernel->run(call.args, call.ranges, call.context);
    if (mode_ == Verification::kNan) {
      if (failure.code == 0) find_new_nan(call, inputs, fault);
    } else if (!is_wrong_ && !is_checked_) {
      failure = compare(call, failure, inputs, fault);
    }
    if (!fault.empty() && mode_ != Verification::kNan)
      is_wrong_.store(true, std::memory_order_release);
    if (fault.empty() && mode_ == Verification::kFirst && !is_wrong_)
      is_checked_.store(true, std::memory_order_release);
  }
  if (!fault.empty()) tell(fault);  // without the lock: the sink may wait for other threads
  return failure;
}

runtime::CheckFailure VerifyingKernel::compare(const Call& call, runtime::CheckFailure failure,
                                               const std::vector<HostTensor>& inputs,
                                               std::string& fault) const {
  const int64_t elements = launch_.reference->num_elements(call.sizes);
  std::string reason;
  if (elements > kMostElements) reason = detail::join(elements, " elements are too many");
  if (launch_.reference->has_negative_extent(call.sizes)) reason = "a tensor without elements";
  if (!reason.empty()) {
    log(LogChannel::kKernels, "kernel ", launch_.label, " is not verified: ", reason);
    return failure;
  }
  const ReferenceRun reference = launch_.reference->run(inputs, call.sizes, 0);
  if (failure.code != 0) {
    if (!reference.failed_check)
      fault = detail::join("failed check ", failure.code, ", which holds in its reference");
    return failure;
  }
  if (reference.failed_check) {
    // A device tells its failed checks later.
    if (!launch_.kernel->is_asynchronous())
      fault = detail::join("missed what its reference found: ", *reference.failed_check);
    return failure;
  }
  compare_outputs(call, inputs, reference, fault);
  return failure;
}

void VerifyingKernel::compare_outputs(const Call& call, const std::vector<HostTensor>& inputs,
                                      const ReferenceRun& reference, std::string& fault) const {
  std::vector<std::vector<HostTensor>> rounded(reference.outputs.size());  // by output
  uint64_t num_roundings = 0;
  const auto round_up_to = [&](uint64_t count) {
    while (num_roundings < count) {
      ReferenceRun run = launch_.reference->run(inputs, call.sizes, ++num_roundings);
      if (run.failed_check) return false;
      for (size_t i = 0; i < run.outputs.size(); ++i)
        rounded[i].push_back(std::move(run.outputs[i]));
    }
    return true;
  };
  const std::vector<HostTensor> found = copy(call, launch_.reference->outputs());
  const ComparisonOptions options{launch_.reference->num_terms(call.sizes),
                                  launch_.reference->rounds_to_16_bits()};
  const auto differ = [&](size_t i) {
    return find_difference(found[i], reference.outputs[i], rounded[i], options);
  };
  // Where a check fails, an index follows from rounding: nothing can be said.
  if (!round_up_to(kRoundings)) return;
  for (size_t i = 0; i < found.size() && fault.empty(); ++i) {
    if (!differ(i)) continue;
    if (!round_up_to(kRoundings + kMoreRoundings)) return;
    const auto difference = differ(i);
    if (!difference) continue;
    if (launch_.reference->compares_computed()) {
      log(LogChannel::kKernels, "kernel ", launch_.label,
          " is not verified: it compares floats that it computes for equality");
      return;
    }
    fault = detail::join(
        "differs from its reference in ", difference->num_wrong, " of ", Elements(found[i]).size(),
        " elements of %", launch_.reference->outputs()[i]->id(), " (", dtype_name(found[i].dtype),
        "), most at element ", difference->element, ": found ", difference->found, ", expected ",
        difference->expected, ", off by ", std::abs(difference->found - difference->expected),
        ", allowed ", difference->allowed);
  }
  if (!fault.empty()) write_outputs(call, reference.outputs);
}

void VerifyingKernel::find_new_nan(const Call& call, const std::vector<HostTensor>& inputs,
                                   std::string& fault) const {
  if (std::any_of(inputs.begin(), inputs.end(), holds_special)) return;
  const std::vector<HostTensor> found = copy(call, launch_.reference->outputs());
  for (size_t i = 0; i < found.size(); ++i)
    if (holds_special(found[i]))
      fault = detail::join("makes NaN or infinities in %", launch_.reference->outputs()[i]->id(),
                           " of inputs that have none");
}

std::vector<HostTensor> VerifyingKernel::copy(const Call& call,
                                              const std::vector<Value*>& values) const {
  std::vector<HostTensor> tensors;
  for (const Value* value : values) {
    const void* memory = call.args.buffers[*launch_.buffer_of(value)];
    const graph::TensorType& type = value->type();
    HostTensor tensor =
        make_host_tensor(type.dtype, launch_.reference->evaluate(type.shape, call.sizes),
                         launch_.reference->evaluate(type.dense_or_strides(), call.sizes));
    if (Elements(tensor).size() > 0)
      std::memcpy(tensor.bytes.data(), memory, static_cast<size_t>(spanned_bytes(tensor)));
    // Memory that nobody wrote (torch.empty) may hold other bytes than 0 and 1.
    if (tensor.dtype == DType::kBool)
      for (char& byte : tensor.bytes) byte = byte != 0 ? 1 : 0;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void VerifyingKernel::write_outputs(const Call& call,
                                    const std::vector<HostTensor>& outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value* value = launch_.reference->outputs()[i];
    auto* memory = static_cast<char*>(call.args.buffers[*launch_.buffer_of(value)]);
    const Elements elements(outputs[i]);
    for (int64_t e = 0; e < elements.size(); ++e)
      std::memcpy(memory + elements.byte_offset(e),
                  outputs[i].bytes.data() + elements.byte_offset(e),
                  static_cast<size_t>(dtype_size(outputs[i].dtype)));
  }
}

void VerifyingKernel::tell(const std::string& fault) const {
  Options options = options_;
  options.dump = "loop,graph";
  Dump dump(options, "verify");
  dump.write("loop", "kernel", launch_.text);
  dump.write("graph", "fused", launch_.reference->graph_text());
  const bool is_replaced = mode_ != Verification::kNan;
  const std::string message = detail::join(
      "kernel ", launch_.label, " (", name(), ") ", fault,
      dump.folder().empty() ? "" : "; its IR stands in " + dump.folder(),
      is_replaced && !options_.strict ? "; the program gets the reference's result" : "");
  if (options_.strict) throw InternalError(message);
  log_warning(LogChannel::kKernels, message);
}

}  // namespace mlcc::driver
