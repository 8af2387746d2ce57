// What a package holds beside code and weights: the plan of its program, and what of it the file
// says in other words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executable.h"

namespace mlcc::package {

enum class InputKind : uint8_t { kGiven, kWeight, kUnused };

// Beside an input of the plan.
struct Input {
  InputKind kind = InputKind::kUnused;
  std::string name;
  std::vector<std::string> sizes;  // "2*batch": to people; empty where all are numbers
  // Of a weight: where its first element lies in the section of weights, and up to its last one.
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Output {
  std::string name;
  std::vector<std::string> sizes;  // as an input's
};

// A size that callers choose.
struct Symbol {
  std::string name;   // in the plan
  std::string shown;  // to people
  int64_t low = 0;
  int64_t high = 0;  // kUnboundedHigh: none
};

// What sizes have to be beside that, for the program to be right.
struct Condition {
  SymExpr truth;     // 1 where it holds
  std::string text;  // to people
};

struct Contents {
  // Of the CPU; without calls, regions, kept inputs and promises. Its launches have no text.
  runtime::ExecutablePlan plan;
  std::vector<Input> inputs;    // as many as the plan's
  std::vector<Output> outputs;  // as many as the plan's
  std::vector<Symbol> symbols;
  std::vector<Condition> conditions;
  // Of each launch in order, of each phase: where its function lies in the section of code.
  std::vector<std::vector<int64_t>> entries;
};

// What an output of the plan is made as; null where it is no tensor that is known before a call.
const runtime::TensorSpec* find_output_spec(const runtime::ExecutablePlan& plan,
                                            runtime::Slot slot);

// Throws UnsupportedError where the plan is none that a package can hold.
std::string encode_contents(const Contents& contents);

// Throws Error where the bytes are not such contents, or where these are not consistent: slots,
// weights and entries lie inside what the plan, a section of weights of `weight_bytes` and one of
// code of `code_bytes` have.
Contents decode_contents(std::string_view bytes, int64_t code_bytes, int64_t weight_bytes);

}  // namespace mlcc::package
