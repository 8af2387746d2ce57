#include "codegen/cpu/supported.h"

#include <algorithm>

#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ExprKind;
using loop::LoopKind;
using loop::ScalarOp;
using loop::StmtKind;

using Reason = std::optional<std::string>;

// Of a loop: lanes of its vectors, vectors side by side, and copies of a body. More only cost
// compile time: wider vectors are split into the machine's.
constexpr int64_t kMostLanes = 64;
constexpr int64_t kMostVectors = 16;
constexpr int64_t kMostCopies = 64;
constexpr int64_t kMostNaturalLanes = 16;  // of `vector` without a width: f32 in 512 bits
// Worker threads may have small stacks (2 MiB).
constexpr int64_t kMostStackBytes = 512 * 1024;

template <typename... Parts>
Reason because(const Parts&... parts) {
  return detail::join(parts...);
}

class Search {
 public:
  explicit Search(const EmitOptions& options) : options_(options) {}

  Reason visit(const loop::Block& block) {
    for (loop::Stmt stmt : block)
      if (Reason reason = visit(stmt)) return reason;
    return std::nullopt;
  }

 private:
  Reason visit(loop::Stmt stmt) {
    switch (stmt->kind) {
    case StmtKind::kLet: return visit(loop::as<loop::Let>(stmt)->value);
    case StmtKind::kStore: {
      const auto* store = loop::as<loop::Store>(stmt);
      if (Reason reason = visit_all(store->indices)) return reason;
      return visit_all({store->value, store->mask});
    }
    case StmtKind::kAtomic: {
      const auto* atomic = loop::as<loop::Atomic>(stmt);
      if (Reason reason = visit_all(atomic->indices)) return reason;
      return visit_all({atomic->value, atomic->mask});
    }
    case StmtKind::kPrefetch: return visit_all(loop::operands(stmt));
    case StmtKind::kFor: return visit_for(*loop::as<loop::For>(stmt));
    case StmtKind::kReduce: return visit_reduce(*loop::as<loop::Reduce>(stmt));
    case StmtKind::kIf: {
      const auto* branch = loop::as<loop::If>(stmt);
      if (Reason reason = visit(branch->condition)) return reason;
      if (Reason reason = visit(branch->then_body)) return reason;
      return visit(branch->else_body);
    }
    case StmtKind::kCheck: return visit_all(loop::operands(stmt));
    case StmtKind::kAlloc: return visit_alloc(*loop::as<loop::Alloc>(stmt)->buffer);
    case StmtKind::kContract: return visit_contract(*loop::as<loop::Contract>(stmt));
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
  }

  Reason visit_mode(const loop::Variable& variable, const loop::LoopMode& mode) {
    if (mode.kind == LoopKind::kBlock || mode.kind == LoopKind::kThread)
      return because("%", variable.name, ": block and thread loops have no code on a cpu");
    if (!has_lanes(mode.kind)) {
      if (mode.unroll > kMostCopies)
        return because("%", variable.name, ": unroll above ", kMostCopies);
      return std::nullopt;
    }
    if (lanes_ != 0) return because("%", variable.name, ": a vector loop inside a vector loop");
    if ((mode.width & (mode.width - 1)) != 0 || mode.width > kMostLanes)
      return because("%", variable.name, ": vectors of ", mode.width,
                     " lanes, expected a power of two up to ", kMostLanes);
    if (mode.unroll > kMostVectors)
      return because("%", variable.name, ": unroll above ", kMostVectors);
    return std::nullopt;
  }

  // Visits what a loop repeats, with the iterations that it runs at once.
  template <typename Body>
  Reason visit_lanes(const loop::LoopMode& mode, Body body) {
    const int64_t outer = lanes_;
    const int64_t width = mode.width == 0 ? kMostNaturalLanes : mode.width;
    if (has_lanes(mode.kind))
      lanes_ = options_.vector_bits == 0 ? mode.unroll : width * mode.unroll;
    Reason reason = body();
    lanes_ = outer;
    return reason;
  }

  Reason visit_for(const loop::For& loop) {
    if (Reason reason = visit_mode(*loop.variable, loop.mode)) return reason;
    if (Reason reason = visit_all({loop.begin, loop.end})) return reason;
    return visit_lanes(loop.mode, [&] { return visit(loop.body); });
  }

  Reason visit_reduce(const loop::Reduce& reduce) {
    if (Reason reason = visit_mode(*reduce.variable, reduce.mode)) return reason;
    if (has_lanes(reduce.mode.kind) && !reduce.combine)
      return because("%", reduce.variable->name, ": a vector reduction without a combine");
    if (Reason reason = visit_all({reduce.begin, reduce.end})) return reason;
    for (const loop::Carried& carried : reduce.carried)
      if (Reason reason = visit(carried.init)) return reason;
    if (reduce.combine) {
      if (Reason reason = visit(reduce.combine->body)) return reason;
      if (Reason reason = visit_all(reduce.combine->values)) return reason;
    }
    return visit_lanes(reduce.mode, [&]() -> Reason {
      if (Reason reason = visit(reduce.body)) return reason;
      return visit_all(reduce.yields);
    });
  }

  Reason visit_alloc(const loop::Buffer& buffer) {
    if (buffer.scope == loop::Scope::kShared)
      return because("%", buffer.name, ": shared buffers have no place on a cpu");
    int64_t bytes = dtype_size(buffer.dtype) * std::max<int64_t>(lanes_, 1);
    for (loop::Expr extent : buffer.shape) bytes *= loop::as<loop::Constant>(extent)->as_int();
    stack_bytes_ += bytes;
    if (stack_bytes_ <= kMostStackBytes) return std::nullopt;
    return because("%", buffer.name, ": local buffers of ", stack_bytes_, " bytes, at most ",
                   kMostStackBytes, " fit a thread's stack");
  }

  Reason visit_contract(const loop::Contract& contract) {
    if (lanes_ != 0)
      return because("%", contract.c.buffer->name, ": a contraction inside a vector loop");
    if (contract.b.low_columns > 0)
      if (Reason reason = halves_reason(contract)) return reason;
    return visit_all(loop::operands(&contract));
  }

  // Vectors of columns have one half or the other.
  Reason halves_reason(const loop::Contract& contract) const {
    const int64_t lanes =
        std::max<int64_t>(options_.vector_bits / 8 / dtype_size(contract.c.buffer->dtype), 1);
    if (contract.live_columns == nullptr && contract.b.low_columns % lanes == 0)
      return std::nullopt;
    return because("%", contract.b.buffer->name, ": halves of ", contract.b.low_columns,
                   " columns for vectors of ", lanes, ", or only some are live");
  }

  Reason fma_reason(DType dtype) const {
    if (dtype != DType::kF64 || options_.instructions.fma) return std::nullopt;
    return because("fma of f64 on a cpu without the instruction");
  }

  Reason op_reason(ScalarOp op, DType dtype) const {
    if (op == ScalarOp::kFma || op == ScalarOp::kRem) return fma_reason(dtype);
    return std::nullopt;
  }

  Reason visit_all(const std::vector<loop::Expr>& list) {
    for (loop::Expr e : list)
      if (Reason reason = visit(e)) return reason;
    return std::nullopt;
  }

  Reason visit(loop::Expr e) {
    if (!e) return std::nullopt;
    switch (e->kind) {
    case ExprKind::kConstant:
    case ExprKind::kVariable: return std::nullopt;
    case ExprKind::kCast: return visit(loop::as<loop::Cast>(e)->value);
    case ExprKind::kLoad: {
      const auto* load = loop::as<loop::Load>(e);
      if (Reason reason = visit_all(load->indices)) return reason;
      return visit_all({load->mask, load->otherwise});
    }
    case ExprKind::kApply: {
      const auto* apply = loop::as<loop::Apply>(e);
      if (Reason reason = op_reason(apply->op, apply->args.back()->dtype)) return reason;
      return visit_all(apply->args);
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
  }

  const EmitOptions& options_;
  int64_t lanes_ = 0;  // iterations run at once by the enclosing vector loop; 0 outside
  int64_t stack_bytes_ = 0;
};

}  // namespace

std::optional<std::string> why_unsupported(const loop::Kernel& kernel, const EmitOptions& options) {
  for (const loop::Block& phase : kernel.phases)
    if (Reason reason = Search(options).visit(phase)) return reason;
  return std::nullopt;
}

}  // namespace mlcc::codegen::cpu
