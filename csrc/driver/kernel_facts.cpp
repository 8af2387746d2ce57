#include "driver/kernel_facts.h"

#include <variant>

#include "loop/text.h"
#include "loop/work.h"

namespace mlcc::driver {

std::vector<KernelFacts> kernel_facts(const runtime::ExecutablePlan& plan,
                                      const std::function<int64_t(std::string_view)>& value_of) {
  std::vector<KernelFacts> facts;
  for (const runtime::Step& step : plan.steps) {
    const auto* launch = std::get_if<runtime::LaunchStep>(&step);
    if (launch == nullptr) continue;
    std::vector<int64_t> sizes;
    for (const SymExpr& size : launch->sizes) sizes.push_back(size.evaluate(value_of));
    loop::Arena arena;
    const loop::Work work = loop::work_of(loop::parse_kernel(arena, launch->kernel_text), sizes);
    facts.push_back({launch->label, launch->source, work.flops, work.bytes});
  }
  return facts;
}

}  // namespace mlcc::driver
