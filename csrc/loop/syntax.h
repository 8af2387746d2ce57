// The words and precedences of the text form, shared by printer and parser.
#pragma once

#include <array>
#include <string_view>

#include "loop/ir.h"

namespace mlcc::loop {

// In the order of the enumerators.
constexpr std::array<std::string_view, 4> kScopeNames = {"global", "shared", "stack", "register"};
constexpr std::array<std::string_view, 5> kAccessNames = {"in", "out", "inout", "scratch", "value"};
constexpr std::array<std::string_view, 7> kLoopKindNames = {
    "serial", "parallel", "vector", "unrolled", "block", "thread", "scan"};

struct Infix {
  ScalarOp op;
  std::string_view text;
  int level;  // a higher level binds tighter
};

constexpr int kLowestLevel = 1;
constexpr int kCompareLevel = 4;  // does not chain; all other levels group to the left
constexpr int kTightestLevel = 6;

constexpr std::array<Infix, 12> kInfix = {{{ScalarOp::kOr, "|", 1},
                                           {ScalarOp::kXor, "^", 2},
                                           {ScalarOp::kAnd, "&", 3},
                                           {ScalarOp::kEq, "==", 4},
                                           {ScalarOp::kNe, "!=", 4},
                                           {ScalarOp::kLt, "<", 4},
                                           {ScalarOp::kLe, "<=", 4},
                                           {ScalarOp::kGt, ">", 4},
                                           {ScalarOp::kGe, ">=", 4},
                                           {ScalarOp::kAdd, "+", 5},
                                           {ScalarOp::kSub, "-", 5},
                                           {ScalarOp::kMul, "*", 6}}};

constexpr const Infix* find_infix(ScalarOp op) {
  for (const Infix& infix : kInfix)
    if (infix.op == op) return &infix;
  return nullptr;
}

}  // namespace mlcc::loop
