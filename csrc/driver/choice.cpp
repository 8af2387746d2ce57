#include "driver/choice.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "driver/session.h"
#include "driver/verdicts.h"
#include "graph/call_alone.h"
#include "graph/text.h"
#include "runtime/trial.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using Clock = std::chrono::steady_clock;

// Nothing is tried whose operands are larger, or of which one run takes longer.
constexpr runtime::TrialLimits kLimits = {.bytes = int64_t{64} << 20, .seconds = 0.001};
// What all measurements of a graph may take, with the code that is compiled for them.
constexpr double kSecondsOfGraph = 0.05;
// What is guessed stays, unless the other one is so many times as fast in three quarters of the
// pairs: a call by more than measuring errs, code as soon as it is no slower, since it joins what
// stands around it.
constexpr double kMarginOfCall = 1.03, kMarginOfCode = 1.0;

constexpr std::string_view kCode = "code", kCall = "call";

std::string_view word_of(bool is_code) { return is_code ? kCode : kCall; }

bool has_calls(const runtime::Executable& executable) {
  const auto& steps = executable.plan().steps;
  return std::any_of(steps.begin(), steps.end(), [](const runtime::Step& step) {
    return std::holds_alternative<runtime::ExternStep>(step);
  });
}

int64_t bytes_of(const graph::Graph& graph) {
  int64_t bytes = 0;
  for (const auto& input : graph.inputs()) {
    if (input->kind() != graph::ValueKind::kTensor) continue;
    int64_t size = dtype_size(input->type().dtype);
    for (const SymExpr& extent : input->type().shape) size *= graph.expected(extent);
    bytes += size;
  }
  return bytes;
}

}  // namespace

Result<runtime::TrialResult> Choice::run_both(const Prepare& prepare_call,
                                              const Prepare& prepare_code) const {
  try {
    const std::function<void()> run_code = prepare_code(), run_call = prepare_call();
    // What is computed from static inputs is kept then, and a library has made code of its own.
    run_code();
    run_call();
    return host_.compare(run_call, run_code, kLimits.seconds);
  } catch (const std::exception& error) {  // a library's, where there is no memory for one
    return unsupported(error.what());
  }
}

bool Choice::is_code_faster(graph::Pass pass, const graph::Graph& graph, const graph::Node& call,
                            bool guess) {
  std::unique_ptr<graph::Graph> alone = graph::call_alone(graph, call);
  if (alone == nullptr) return guess;
  const std::string text = graph::print(*alone);
  const Hash128 key = verdict_key(detail::join(graph::all_passes()[static_cast<size_t>(pass)].name,
                                               "\n", text, host_.libraries),
                                  cpu_backend(options_).backend->target(), host_.threads, options_);
  const auto not_measured = [&](std::string_view reason, bool is_lasting) {
    return Verdict{std::string(word_of(guess)), detail::join("not measured: ", reason, "\n", text),
                   is_lasting};
  };
  const std::string word = verdict_of(key, options_, [&]() -> Verdict {
    if (!host_.prepare) return not_measured("calls cannot be made now", false);
    if (seconds_ > kSecondsOfGraph) return not_measured("other calls took long enough", false);
    if (bytes_of(*alone) > kLimits.bytes) return not_measured("it is large", true);
    const Clock::time_point start = Clock::now();
    const auto count_time = [&] {
      seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    };
    const auto size_of = [&](std::string_view name) { return alone->size_hint(name); };
    const auto candidate = [&](std::optional<graph::Pass> code_of) {
      return compile_(graph::parse_graph(text), code_of);
    };
    const auto code = candidate(pass), library = candidate(std::nullopt);
    if (has_calls(*code) || !has_calls(*library)) {
      count_time();
      return not_measured("alone it is computed in another way", true);
    }
    const Result<runtime::TrialResult> trial =
        run_both([&] { return host_.prepare(library, size_of); },
                 [&] { return host_.prepare(code, size_of); });
    count_time();
    if (!trial) return not_measured(trial.reason(), true);
    const bool is_code =
        guess ? 1 / trial->high_ratio < kMarginOfCall : trial->low_ratio >= kMarginOfCode;
    return {std::string(word_of(is_code)),
            detail::join("code ", trial->second_seconds * 1e6, " us, call ",
                         trial->first_seconds * 1e6, " us, ratio ", trial->ratio, ", quartiles ",
                         trial->low_ratio, " and ", trial->high_ratio, "\n", text)};
  });
  return word == kCode;
}

}  // namespace mlcc::driver
