#include "loop/work.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "loop/mutator.h"
#include "loop/scalar_value.h"

namespace mlcc::loop {
namespace {

bool is_counted(const Apply& apply) {
  if (!is_float(apply.dtype)) return false;
  const OpClass op_class = scalar_op_class(apply.op);
  return op_class == OpClass::kArith || op_class == OpClass::kFloat ||
         op_class == OpClass::kFunction;
}

// Walks over a kernel with the values of sizes, of loop variables in their first iteration, and of
// what is computed from these.
class Counter {
 public:
  explicit Counter(std::unordered_map<const Variable*, uint64_t> values)
      : values_(std::move(values)) {}

  // Nothing where an extent is not known.
  std::optional<double> flops(const Block& block) {
    double total = 0;
    std::unordered_set<Expr> seen;
    for (const Stmt stmt : block) {
      for (const Expr e : operands(stmt))
        if (as<Reduce>(stmt) == nullptr) total += ops(e, seen);
      const std::optional<double> inside = flops_inside(stmt);
      if (!inside) return std::nullopt;
      total += *inside;
    }
    return total;
  }

  std::optional<int64_t> value(Expr e) {
    const std::optional<uint64_t> bits = bits_of(e);
    if (!bits || e->dtype != DType::kI64) return std::nullopt;
    return decode_int(e->dtype, *bits);
  }

 private:
  std::optional<uint64_t> bits_of(Expr e) {
    if (const auto* constant = as<Constant>(e)) return constant->bits;
    if (const auto* variable = as<Variable>(e)) {
      const auto found = values_.find(variable);
      return found == values_.end() ? std::nullopt : std::optional<uint64_t>(found->second);
    }
    if (const auto* cast = as<Cast>(e)) {
      const std::optional<uint64_t> bits = bits_of(cast->value);
      return bits ? std::optional<uint64_t>(convert(cast->value->dtype, e->dtype, *bits))
                  : std::nullopt;
    }
    const auto* apply = as<Apply>(e);
    if (apply == nullptr) return std::nullopt;
    std::vector<uint64_t> args;
    for (const Expr arg : apply->args) {
      const std::optional<uint64_t> bits = bits_of(arg);
      if (!bits) return std::nullopt;
      args.push_back(*bits);
    }
    return evaluate(apply->op, apply->args.back()->dtype, args);
  }

  static double ops(Expr e, std::unordered_set<Expr>& seen) {
    if (!seen.insert(e).second) return 0;
    if (const auto* cast = as<Cast>(e)) return ops(cast->value, seen);
    const auto* apply = as<Apply>(e);
    if (apply == nullptr) return 0;
    double total = is_counted(*apply) ? (apply->op == ScalarOp::kFma ? 2 : 1) : 0;
    for (const Expr arg : apply->args) total += ops(arg, seen);
    return total;
  }

  std::optional<double> flops_inside(Stmt stmt) {
    if (const auto* let = as<Let>(stmt)) {
      if (!is_float(let->value->dtype))
        if (const std::optional<uint64_t> bits = bits_of(let->value))
          values_[let->variable] = *bits;
      return 0;
    }
    if (const auto* loop = as<For>(stmt))
      return times(loop->variable, loop->begin, loop->end, loop->body, {});
    if (const auto* loop = as<Reduce>(stmt))
      return times(loop->variable, loop->begin, loop->end, loop->body, loop->yields);
    if (const auto* branch = as<If>(stmt)) {
      const std::optional<double> then = flops(branch->then_body);
      const std::optional<double> otherwise = flops(branch->else_body);
      if (!then || !otherwise) return std::nullopt;
      return std::max(*then, *otherwise);
    }
    if (const auto* contract = as<Contract>(stmt)) {
      double total = 2.0 * static_cast<double>(contract->rows * contract->columns);
      for (const Expr depth : contract->depths) {
        const std::optional<int64_t> extent = value(depth);
        if (!extent) return std::nullopt;
        total *= static_cast<double>(std::max<int64_t>(*extent, 0));
      }
      return total;
    }
    return 0;
  }

  std::optional<double> times(const Variable* variable, Expr begin, Expr end, const Block& body,
                              const std::vector<Expr>& yields) {
    const std::optional<int64_t> first = value(begin);
    const std::optional<int64_t> last = value(end);
    if (!first || !last) return std::nullopt;
    if (*last <= *first) return 0;
    values_[variable] = encode_int(DType::kI64, *first);
    const std::optional<double> once = flops(body);
    if (!once) return std::nullopt;
    double total = *once;
    std::unordered_set<Expr> seen;
    for (const Expr e : yields) total += ops(e, seen);
    return total * static_cast<double>(*last - *first);
  }

  std::unordered_map<const Variable*, uint64_t> values_;
};

}  // namespace

Work work_of(const Kernel& kernel, std::span<const int64_t> sizes) {
  std::unordered_map<const Variable*, uint64_t> values;
  for (size_t i = 0; i < sizes.size(); ++i)
    values[kernel.sizes[i]] = encode_int(DType::kI64, sizes[i]);
  Counter counter(std::move(values));
  Work work;
  for (const Buffer* buffer : kernel.buffers) {
    if (buffer->access == Access::kScratch) continue;
    int64_t bytes = dtype_size(buffer->dtype);
    for (const Expr size : buffer->shape) bytes *= counter.value(size).value_or(0);
    work.bytes += buffer->access == Access::kInOut ? 2 * bytes : bytes;
  }
  work.flops = 0;
  for (const Block& phase : kernel.phases) {
    const std::optional<double> flops = counter.flops(phase);
    if (!flops) {
      work.flops = std::nullopt;
      break;
    }
    *work.flops += *flops;
  }
  return work;
}

}  // namespace mlcc::loop
