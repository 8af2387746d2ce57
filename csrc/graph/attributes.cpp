#include "graph/attributes.h"

#include <array>

#include "support/error.h"

namespace mlcc::graph {
namespace {

constexpr std::array kDims = {AttrSpec{"dims", AttrKind::kInts}};
constexpr std::array kDim = {AttrSpec{"dim", AttrKind::kInt}};
constexpr std::array kSlice = {AttrSpec{"dim", AttrKind::kInt},
                               AttrSpec{"start", AttrKind::kSymbolic},
                               AttrSpec{"step", AttrKind::kInt}};
constexpr std::array kWindow = {AttrSpec{"dilation", AttrKind::kInt},
                                AttrSpec{"dim", AttrKind::kInt}, AttrSpec{"step", AttrKind::kInt}};
constexpr std::array kExtend = {AttrSpec{"before", AttrKind::kInt}, AttrSpec{"dim", AttrKind::kInt},
                                AttrSpec{"mode", AttrKind::kString}};
constexpr std::array kPad = {AttrSpec{"before", AttrKind::kInt}, AttrSpec{"dim", AttrKind::kInt},
                             AttrSpec{"value", AttrKind::kNumber}};
constexpr std::array kReduction = {AttrSpec{"dims", AttrKind::kInts},
                                   AttrSpec{"keepdim", AttrKind::kBool}};
constexpr std::array kFull = {AttrSpec{"value", AttrKind::kNumber}};
constexpr std::array kIota = {AttrSpec{"start", AttrKind::kSymbolic},
                              AttrSpec{"step", AttrKind::kSymbolic}};
constexpr std::array kSizeValue = {AttrSpec{"size", AttrKind::kSymbolic}};
constexpr std::array kGather = {AttrSpec{"dim", AttrKind::kInt},
                                AttrSpec{"error", AttrKind::kString}};
constexpr std::array kTake = {AttrSpec{"dim", AttrKind::kInt}, AttrSpec{"error", AttrKind::kString},
                              AttrSpec{"wrap", AttrKind::kBool}};
constexpr std::array kScatter = {
    AttrSpec{"combine", AttrKind::kString}, AttrSpec{"dim", AttrKind::kInt},
    AttrSpec{"error", AttrKind::kString}, AttrSpec{"ordered", AttrKind::kBool}};
constexpr std::array kIndexPut = {
    AttrSpec{"combine", AttrKind::kString}, AttrSpec{"dim", AttrKind::kInt},
    AttrSpec{"error", AttrKind::kString}, AttrSpec{"ordered", AttrKind::kBool},
    AttrSpec{"wrap", AttrKind::kBool}};
constexpr std::array kScan = {AttrSpec{"combine", AttrKind::kString},
                              AttrSpec{"dim", AttrKind::kInt}};

constexpr std::array kContract = {AttrSpec{"lhs", AttrKind::kIndex},
                                  AttrSpec{"reduced", AttrKind::kSymbolics},
                                  AttrSpec{"rhs", AttrKind::kIndex}};
constexpr std::array kContractGroups = {
    AttrSpec{"bits", AttrKind::kInt},         AttrSpec{"lhs", AttrKind::kIndex},
    AttrSpec{"lhs_scales", AttrKind::kIndex}, AttrSpec{"reduced", AttrKind::kSymbolics},
    AttrSpec{"rhs", AttrKind::kIndex},        AttrSpec{"rhs_scales", AttrKind::kIndex},
    AttrSpec{"starts", AttrKind::kIndex}};
constexpr std::array kAttend = {
    AttrSpec{"empty_is_zero", AttrKind::kBool}, AttrSpec{"lhs", AttrKind::kIndex},
    AttrSpec{"range", AttrKind::kIndex}, AttrSpec{"reduced", AttrKind::kSymbolics},
    AttrSpec{"rhs", AttrKind::kIndex}};
constexpr std::array kAttendGradients = {AttrSpec{"range", AttrKind::kIndex}};
constexpr std::array kScoreNorm = {
    AttrSpec{"empty_is_zero", AttrKind::kBool}, AttrSpec{"lhs", AttrKind::kIndex},
    AttrSpec{"range", AttrKind::kIndex}, AttrSpec{"reduced", AttrKind::kSymbolics}};

}  // namespace

std::span<const AttrSpec> attr_specs(Op op) {
  const OpClass op_class = op_info(op).op_class;
  if (op_class == OpClass::kPointwise) return {};
  if (op_class == OpClass::kReduction) return kReduction;
  if (op == Op::kPermute || op == Op::kFlip) return kDims;
  if (op == Op::kCat || op == Op::kSpread) return kDim;
  if (op == Op::kSlice) return kSlice;
  if (op == Op::kWindow) return kWindow;
  if (op == Op::kExtend) return kExtend;
  if (op == Op::kPad) return kPad;
  if (op == Op::kFull) return kFull;
  if (op == Op::kIota) return kIota;
  if (op == Op::kSizeValue) return kSizeValue;
  if (op == Op::kTake) return kTake;
  if (op == Op::kGather) return kGather;
  if (op == Op::kScatter) return kScatter;
  if (op == Op::kIndexPut) return kIndexPut;
  if (op == Op::kScan) return kScan;
  if (op == Op::kContract) return kContract;
  if (op == Op::kContractGroups) return kContractGroups;
  if (op == Op::kAttend) return kAttend;
  if (op == Op::kAttendGradients) return kAttendGradients;
  if (op == Op::kLogSumExp || op == Op::kLargestScore || op == Op::kScoreSum) return kScoreNorm;
  return {};
}

bool fits(const Attr& attr, AttrKind kind, DType dtype) {
  switch (kind) {
  case AttrKind::kInt: return std::holds_alternative<int64_t>(attr);
  case AttrKind::kInts: return std::holds_alternative<std::vector<int64_t>>(attr);
  case AttrKind::kBool: return std::holds_alternative<bool>(attr);
  case AttrKind::kString: return std::holds_alternative<std::string>(attr);
  case AttrKind::kSymbolic: return std::holds_alternative<SymExpr>(attr);
  case AttrKind::kSymbolics:
  case AttrKind::kIndex: return std::holds_alternative<std::vector<SymExpr>>(attr);
  case AttrKind::kNumber:
    return is_float(dtype) ? std::holds_alternative<double>(attr)
                           : std::holds_alternative<int64_t>(attr);
  }
  MLCC_UNREACHABLE("attribute kind ", static_cast<int>(kind));
}

}  // namespace mlcc::graph
