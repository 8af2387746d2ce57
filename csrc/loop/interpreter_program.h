// A kernel prepared for the interpreter: every variable, constant and intermediate value has a slot
// in one flat frame, and the expressions of a statement are a list of instructions in which shared
// parts stand once.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "loop/ir.h"

namespace mlcc::loop {

constexpr int kNoSlot = -1;

struct Instruction {
  Expr expr;  // an Apply, Cast or Load
  int out;
  std::array<int, 3> args;  // of an Apply or Cast
  int buffer;               // of a Load, below
  std::vector<int> indices;
  int mask = kNoSlot;
  int otherwise = kNoSlot;
};

// Code whose values are in `slots` once the instructions have run.
struct Code {
  std::vector<Instruction> instructions;
  std::vector<int> slots;
};

// A statement. `operands` holds: let: the value; store and atomic: indices, value, then perhaps the
// mask; for: begin, end; reduce: begin, end, the inits; if and check: the condition; alloc: the
// shape; contract: origin, steps and rows of c, of a, of b, the depths, then perhaps live_columns.
struct Step {
  Stmt stmt;
  Code operands;
  std::vector<int> buffers;  // those that the statement itself writes, reads (contract) or makes
  int variable = kNoSlot;    // of let, for, reduce
  std::vector<std::vector<Step>> blocks;  // for: body; if: then, else; reduce: body, combine's body
  // Of a reduce.
  std::vector<int> carried, results, left, right;
  Code yields, combined;
};

struct Program {
  std::vector<uint64_t> frame;         // constants are in place, everything else is 0
  std::vector<int> sizes;              // slots
  std::vector<const Buffer*> buffers;  // parameters first
  std::vector<Code> shapes, strides;   // of each parameter
  std::vector<std::vector<Step>> phases;
};

Program prepare(const Kernel& kernel);

}  // namespace mlcc::loop
