#include "fusion/online.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace mlcc::fusion {

using graph::Access;
using graph::Node;
using graph::Op;
using graph::Value;
using Index = std::vector<SymExpr>;

namespace {

constexpr size_t kMostSteps = 4;  // of one repair
// Elements or rows that lie side by side in memory: of fewer, merging blocks takes longer than a
// second pass.
constexpr int64_t kLongPiece = 512;

class Matcher {
 public:
  explicit Matcher(const OnlineScope& scope) : scope_(scope) {}

  std::optional<Repair> match(const Node& sum) {
    if (sum.op() != Op::kSum || !is_float(sum.result()->type().dtype)) return std::nullopt;
    const Access terms{sum.operand(0), scope_.read_position(sum)};
    if (!add_square(terms) && !add_factor(terms)) return std::nullopt;
    if (repair_.empty() || repair_.size() > kMostSteps || !quotients_are_scaled())
      return std::nullopt;
    return std::move(repair_);
  }

 private:
  // What computes an element, past index maps and casts that keep it; `producer()` of its value is
  // null where that lies in memory.
  Access source(Access access) const {
    while (true) {
      const Node* node = inside(*access.value);
      if (node == nullptr) return access;
      if (graph::is_single_index_map(node->op()))
        access = graph::operand_access(*node, access.index, scope_.assumptions);
      else if (is_widening(*node))
        access = operand(*node, 0, access.index);
      else
        return access;
    }
  }

  // The node that computes a value in the kernel; null where the kernel reads the value.
  const Node* inside(const Value& value) const {
    const Node* node = value.producer();
    if (node == nullptr) return nullptr;
    return scope_.group.placements.count(node) || scope_.is_folded(*node) ? node : nullptr;
  }

  static bool is_widening(const Node& node) {
    if (node.op() != Op::kCast) return false;
    const DType from = node.operand(0)->type().dtype, to = node.result()->type().dtype;
    return is_float(from) && is_float(to) && (from == to || dtype_size(from) < dtype_size(to));
  }

  static Access operand(const Node& node, size_t i, const Index& index) {
    return {node.operand(i), graph::broadcast_index(node.operand(i)->type().shape, index)};
  }

  bool is_same(const Access& a, const Access& b) const {
    return a.value == b.value && a.index.size() == b.index.size() &&
           std::equal(a.index.begin(), a.index.end(), b.index.begin(),
                      [&](const SymExpr& i, const SymExpr& j) {
                        return scope_.assumptions.is_equal(i, j);
                      });
  }

  // Whether some value of the row is behind it.
  bool depends_on_row(const Value& value) {
    const auto [known, is_new] = depends_.try_emplace(&value, false);
    if (!is_new) return known->second;
    const Node* node = inside(value);
    if (node == nullptr) return false;
    const bool depends = is_reduction(*node) ||
                         std::any_of(node->operands().begin(), node->operands().end(),
                                     [&](const Value* part) { return depends_on_row(*part); });
    return depends_[&value] = depends;
  }

  // -- terms

  // (e - s)^2 alone.
  bool add_square(const Access& terms) {
    const Access access = source(terms);
    const Node* node = inside(*access.value);
    if (node == nullptr) return false;
    const bool is_product =
        node->op() == Op::kMul &&
        is_same(source(operand(*node, 0, access.index)), source(operand(*node, 1, access.index)));
    if (node->op() != Op::kSquare && !is_product) return false;
    const Access difference = source(operand(*node, 0, access.index));
    const Node* sub = inside(*difference.value);
    if (sub == nullptr || sub->op() != Op::kSub) return false;
    const Access element = operand(*sub, 0, difference.index);
    const Access centre = operand(*sub, 1, difference.index);
    const Node* sum = mean_of(centre, element);
    if (sum == nullptr || depends_on_row(*element.value)) return false;
    repair_.push_back({RepairKind::kSpread, centre, sum, difference});
    return true;
  }

  // A product of exponentials, of quotients and of what depends on no row value.
  bool add_factor(const Access& terms) {
    const Access access = source(terms);
    if (!depends_on_row(*access.value)) return true;
    if (repair_.size() > kMostSteps) return false;
    const Node* node = inside(*access.value);
    const auto part = [&](size_t i) { return operand(*node, i, access.index); };
    if (node->op() == Op::kExp) return add_exponential(part(0));
    if (node->op() == Op::kMul) return add_factor(part(0)) && add_factor(part(1));
    if (node->op() == Op::kReciprocal) return add_divisor(part(0), RepairKind::kReciprocal, access);
    return node->op() == Op::kDiv && add_factor(part(0)) &&
           add_divisor(part(1), RepairKind::kQuotient, part(1));
  }

  bool add_exponential(const Access& exponent) {
    const Access access = source(exponent);
    const Node* sub = inside(*access.value);
    if (sub == nullptr || sub->op() != Op::kSub) return false;
    const Access element = operand(*sub, 0, access.index);
    const Access shift = operand(*sub, 1, access.index);
    const Node* largest = largest_of(shift, element);
    if (largest == nullptr || depends_on_row(*element.value)) return false;
    const bool is_finite = inside(*source(shift).value)->op() == Op::kWhere;
    repair_.push_back({RepairKind::kScale, shift, largest, {}, is_finite});
    return true;
  }

  // `row`: what the terms are divided by or multiplied with.
  bool add_divisor(const Access& divisor, RepairKind kind, const Access& row) {
    if (!depends_on_row(*divisor.value)) return true;
    const Access access = source(divisor);
    const Node* sum = inside(*access.value);
    if (sum == nullptr || sum->op() != Op::kSum) return false;
    repair_.push_back({kind, row, sum, {}});
    return true;
  }

  // A divisor is at least 1 then, as soon as more was seen than lowest numbers.
  bool quotients_are_scaled() const {
    return std::all_of(repair_.begin(), repair_.end(), [&](const RepairStep& step) {
      if (!is_division(step.kind)) return true;
      const auto divisor = scope_.group.repairs.find(step.reduction);
      if (divisor == scope_.group.repairs.end() || divisor->second.size() != 1 ||
          divisor->second[0].kind != RepairKind::kScale || !is_exponential(*step.reduction))
        return false;
      return std::any_of(repair_.begin(), repair_.end(), [&](const RepairStep& other) {
        return other.kind == RepairKind::kScale && other.reduction == divisor->second[0].reduction;
      });
    });
  }

  // Whether nothing but exponentials is added up.
  bool is_exponential(const Node& sum) const {
    const Node* node = inside(*source({sum.operand(0), scope_.read_position(sum)}).value);
    return node != nullptr && node->op() == Op::kExp;
  }

  // -- row values

  // The reduction, if it goes over `element`.
  const Node* over(const Node* reduction, Op op, const Access& element) const {
    if (reduction == nullptr || reduction->op() != op) return nullptr;
    const Access read = source({reduction->operand(0), scope_.read_position(*reduction)});
    return is_same(read, source(element)) ? reduction : nullptr;
  }

  // The reduction whose result `value` is; or that result with 0 in the place of infinities.
  const Node* largest_of(const Access& value, const Access& element) const {
    const Access access = source(value);
    const Node* node = inside(*access.value);
    if (node == nullptr || node->op() != Op::kWhere) return over(node, Op::kMax, element);
    const Access otherwise = source(operand(*node, 2, access.index));
    if (!is_number(operand(*node, 1, access.index), 0) ||
        !is_infinite(operand(*node, 0, access.index), otherwise))
      return nullptr;
    return over(inside(*otherwise.value), Op::kMax, element);
  }

  bool is_infinite(const Access& condition, const Access& value) const {
    const Access access = source(condition);
    const Node* node = inside(*access.value);
    if (node == nullptr) return false;
    if (node->op() == Op::kIsInf) return is_same(source(operand(*node, 0, access.index)), value);
    if (node->op() != Op::kEq) return false;
    const Access magnitude = source(operand(*node, 0, access.index));
    const Node* abs = inside(*magnitude.value);
    return abs != nullptr && abs->op() == Op::kAbs &&
           is_same(source(operand(*abs, 0, magnitude.index)), value) &&
           is_number(operand(*node, 1, access.index), std::numeric_limits<double>::infinity());
  }

  // The sum of all e whose mean `value` is.
  const Node* mean_of(const Access& value, const Access& element) const {
    const Access access = source(value);
    const Node* node = inside(*access.value);
    if (node == nullptr || node->op() != Op::kDiv) return nullptr;
    if (!is_row_length(operand(*node, 1, access.index))) return nullptr;
    return over(inside(*source(operand(*node, 0, access.index)).value), Op::kSum, element);
  }

  bool is_row_length(const Access& value) const {
    SymExpr length = 1;
    for (size_t d = 0; d < scope_.group.domain.size(); ++d)
      if (scope_.group.reduced[d]) length = length * scope_.group.domain[d];
    if (const auto constant = length.as_constant())
      return is_number(value, static_cast<double>(*constant));
    const Node* node = source(value).value->producer();
    if (node != nullptr && node->op() == Op::kCast) node = node->operand(0)->producer();
    return node != nullptr && node->op() == Op::kSizeValue &&
           scope_.assumptions.is_equal(node->attr<SymExpr>("size"), length);
  }

  bool is_number(const Access& value, double number) const {
    const Node* node = source(value).value->producer();
    if (node == nullptr || node->op() != Op::kFull) return false;
    const graph::Attr& value_of = node->attr("value");
    if (const auto* integer = std::get_if<int64_t>(&value_of))
      return static_cast<double>(*integer) == number;
    const auto* real = std::get_if<double>(&value_of);
    return real != nullptr && *real == number;
  }

  const OnlineScope& scope_;
  Repair repair_;
  std::unordered_map<const Value*, bool> depends_;
};

}  // namespace

bool has_long_pieces(const Group& group, const SizeHint& hint) {
  SymExpr piece = 1;
  size_t axis = group.reduced.size();
  while (axis > 0 && !group.reduced[axis - 1]) --axis;
  while (axis > 0 && group.reduced[axis - 1]) piece = piece * group.domain[--axis];
  return piece.evaluate(hint) >= kLongPiece;
}

std::optional<Repair> find_repair(const Node& reduction, const OnlineScope& scope) {
  return Matcher(scope).match(reduction);
}

}  // namespace mlcc::fusion
