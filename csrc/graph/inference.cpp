#include "graph/inference.h"

#include "graph/draft_checker.h"
#include "graph/inference_rules.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// The operands' device. Tensors of the CPU without dimensions may stand beside another one's.
Device infer_device(const DraftChecker& check) {
  if (check.num_operands() == 0) return check.declared().device;
  const auto device_of = [&](size_t i) { return check.type(i).device; };
  Device device = device_of(0);
  for (size_t i = 1; i < check.num_operands() && device.kind == DeviceKind::kCpu; ++i)
    device = device_of(i);
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const bool is_number = device_of(i).kind == DeviceKind::kCpu && check.rank(i) == 0;
    check.require(device_of(i) == device || is_number,
                  "expected all tensors to be on the same device, but found at least two devices, ",
                  device.str(), " and ", device_of(i).str(), "!");
  }
  return device;
}

TensorType infer_on_any_device(const DraftChecker& check) {
  switch (op_info(check.op()).op_class) {
  case OpClass::kPointwise: return infer_pointwise(check);
  case OpClass::kIndexMap: return infer_index_map(check);
  case OpClass::kReduction: return infer_reduction(check);
  case OpClass::kCreation: return infer_creation(check);
  case OpClass::kGather: return infer_gather(check);
  case OpClass::kUpdate: return infer_update(check);
  case OpClass::kScan: return infer_scan(check);
  case OpClass::kContraction: return infer_contraction(check);
  case OpClass::kAttention: return infer_attention(check);
  case OpClass::kExtern: break;
  }
  MLCC_UNREACHABLE("the result of ", op_info(check.op()).text, " cannot be inferred");
}

}  // namespace

TensorType infer(const NodeDraft& draft) {
  const DraftChecker check(draft);
  MLCC_CHECK(draft.op != Op::kSizeResult, "size_result has no tensor type");
  check.check_operands();
  check.check_attrs();
  TensorType type = infer_on_any_device(check);
  check.require(!is_foreign(type.dtype), "result is ", dtype_name(type.dtype),
                ", which only extern calls make");
  type.device = infer_device(check);
  return type;
}

bool is_same_type(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.device == b.device;
}

std::vector<SymExpr> dense_strides(const std::vector<SymExpr>& shape) {
  std::vector<SymExpr> strides(shape.size());
  SymExpr stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride = stride * shape[d];
  }
  return strides;
}

TensorType normalize(TensorType type) {
  if (type.strides.empty()) return type;
  MLCC_USER_CHECK(type.strides.size() == type.shape.size(), "tensor type: found ",
                  type.strides.size(), " strides for ", type.shape.size(), " dimensions");
  if (type.strides == dense_strides(type.shape) || type.strides == contiguous_strides(type.shape))
    type.strides.clear();
  return type;
}

bool have_different_products(const std::vector<SymExpr>& a, const std::vector<SymExpr>& b) {
  const SymExpr left = product(a);
  const SymExpr right = product(b);
  if (left == right) return false;
  const auto difference = (left - right).as_constant();
  if (difference) return *difference != 0;
  // With floordiv, mod, min or max inside, equality may hold by what is known of the symbols
  // elsewhere.
  using Plain = SymExpr::Visitor<bool>;
  const auto both = [](bool x, bool y) { return x && y; };
  const auto never = [](bool, bool) { return false; };
  const Plain is_plain{[](int64_t) { return true; },
                       [](std::string_view) { return true; },
                       both,
                       both,
                       never,
                       never,
                       never,
                       never};
  return left.visit(is_plain) && right.visit(is_plain);
}

}  // namespace mlcc::graph
