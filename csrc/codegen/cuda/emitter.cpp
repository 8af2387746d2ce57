#include "codegen/cuda/emitter.h"

#include <algorithm>

#include "codegen/cuda/phase_emitter.h"
#include "codegen/cuda/prelude_text.h"
#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Block;
using loop::Stmt;

namespace {

// What has no CUDA code, if the kernel holds it.
std::optional<std::string> why_unsupported(const loop::Kernel& kernel) {
  std::optional<std::string> reason;
  for (const Block& phase : kernel.phases)
    loop::for_each_stmt(phase, [&](Stmt stmt) {
      if (stmt->kind == loop::StmtKind::kContract) reason = "a tile contraction";
    });
  return reason;
}

bool has_checks(const loop::Kernel& kernel) {
  bool found = false;
  for (const Block& phase : kernel.phases)
    loop::for_each_stmt(phase, [&](Stmt stmt) { found |= stmt->kind == loop::StmtKind::kCheck; });
  return found;
}

// Everything that an index may reach: the buffers' extents and the ranges of loops.
std::vector<SymExpr> reach(const loop::Kernel& kernel) {
  std::vector<SymExpr> exprs;
  for (const loop::Buffer* buffer : kernel.buffers) exprs.push_back(Offsets::extent(buffer));
  for (const Block& phase : kernel.phases)
    loop::for_each_stmt(phase, [&](Stmt stmt) {
      const auto* loop = loop::as<loop::For>(stmt);
      const auto* reduce = loop::as<loop::Reduce>(stmt);
      if (loop == nullptr && reduce == nullptr) return;
      if (auto end = loop::to_symbolic(loop != nullptr ? loop->end : reduce->end))
        exprs.push_back(*std::move(end));
    });
  return exprs;
}

template <typename T>
void insert_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

bool is_over_sizes(const SymExpr& e, const loop::Kernel& kernel) {
  const std::vector<std::string> names = e.symbols();
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::any_of(kernel.sizes.begin(), kernel.sizes.end(),
                       [&](const loop::Variable* size) { return size->name == name; });
  });
}

// From its first element to behind its last one; 0 where it has none, whatever its strides.
SymExpr bytes_of(const loop::Buffer* buffer) {
  SymExpr elements = 1;
  for (loop::Expr size : buffer->shape) elements *= *loop::to_symbolic(size);
  return SymExpr::min(elements, 1) * Offsets::extent(buffer) * dtype_size(buffer->dtype);
}

}  // namespace

Result<CudaSource> emit_kernel(const loop::Kernel& kernel, std::string_view name,
                               const EmitOptions& options) {
  if (auto reason = why_unsupported(kernel)) return unsupported("cuda: ", *reason);
  CudaSource source;
  KernelInfo& info = source.info;
  info.has_checks = has_checks(kernel);
  bool is_wide = options.variant == Variant::kGeneral;
  if (!is_wide) {
    for (const SymExpr& e : reach(kernel)) {
      if (const auto constant = e.as_constant())
        is_wide |= *constant >= kNarrowIndexLimit;
      else if (is_over_sizes(e, kernel))
        insert_once(info.below_2_30, e);
    }
    if (is_wide) info.below_2_30.clear();
  }
  for (const loop::Buffer* buffer : kernel.buffers) {
    const bool is_value = buffer->access == loop::Access::kValue;
    info.value_bytes.push_back(is_value ? static_cast<int32_t>(dtype_size(buffer->dtype)) : 0);
    info.alignment.push_back(static_cast<int32_t>(dtype_size(buffer->dtype)));
    info.buffer_bytes.push_back(is_value ? 0 : bytes_of(buffer));
    info.is_fresh.push_back(buffer->access == loop::Access::kOut ||
                            buffer->access == loop::Access::kScratch);
  }
  for (size_t i = 0; i < kernel.phases.size(); ++i) {
    Result<PhaseEmitter::Output> phase =
        PhaseEmitter(kernel, options, is_wide, info.has_checks)
            .emit(kernel.phases[i], std::string(name) + "_p" + std::to_string(i));
    if (!phase) return unsupported("cuda: ", phase.reason());
    source.text += phase->text + "\n";
    for (const SymExpr& e : phase->below_2_30) insert_once(info.below_2_30, e);
    for (size_t s = 0; s < kernel.sizes.size(); ++s)
      if (phase->nonnegative.contains(kernel.sizes[s]->name))
        insert_once(info.nonnegative, static_cast<int32_t>(s));
    info.phases.push_back(phase->info);
    for (const Divisibility& condition : phase->divisible) info.divisible.push_back(condition);
    for (size_t b = 0; b < kernel.buffers.size(); ++b)
      if (const auto found = phase->alignment.find(kernel.buffers[b]);
          found != phase->alignment.end())
        info.alignment[b] = std::max(info.alignment[b], static_cast<int32_t>(found->second));
  }
  return source;
}

std::string_view prelude() { return kPreludeText; }

}  // namespace mlcc::codegen::cuda
