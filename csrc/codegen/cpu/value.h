// Values of the loop IR inside a loop that is emitted several iterations at a time.
//
// A vector loop with W lanes and U vectors ("parts") runs W*U iterations at once; lane l of part p
// is iteration p*W + l. What does not depend on the loop variable stays scalar; an i64 that is
// affine in it is kept as such, so that addresses stay scalar too; anything else is U vectors.
#pragma once

#include <optional>

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

struct Lanes {
  unsigned width = 1;      // W
  unsigned parts = 1;      // U
  bool is_vector = false;  // inside a vector loop; with W = 1 its lanes are scalars
  unsigned count() const { return width * parts; }
};

struct Value {
  enum class Form : uint8_t {
    kUniform,  // `scalar` in all lanes
    kLinear,   // i64: `scalar` + iteration * `step`
    kLanes,    // `parts[p]`: <W x T>, or T where W is 1
  };
  Form form;
  llvm::Value* scalar = nullptr;
  llvm::Value* step = nullptr;
  Parts parts;

  bool is_uniform() const { return form == Form::kUniform; }
  bool is_linear() const { return form == Form::kLinear; }
};

Value uniform_value(llvm::Value* scalar);
std::optional<int64_t> as_constant(const llvm::Value* value);  // an integer constant
bool is_constant(const llvm::Value* value, int64_t expected);
// Uniform where the step is the constant 0.
Value linear_value(llvm::Value* scalar, llvm::Value* step);
Value lanes_value(Parts parts);

// `scalar` in every lane.
llvm::Value* splat(const OpContext& c, unsigned width, llvm::Value* scalar);
// One vector per part.
Parts to_parts(const OpContext& c, const Lanes& lanes, const Value& value);
// An i64 op of linear (and uniform) values that stays linear: add, sub, mul by a uniform value,
// neg.
std::optional<Value> linear_op(const OpContext& c, loop::ScalarOp op, llvm::ArrayRef<Value> args);
// A linear i64 cut to a narrower integer; cheaper than cutting its lanes.
Value narrow_linear(const OpContext& c, const Lanes& lanes, const Value& value, llvm::Type* type);
// Applies `op` per part, or once where all arguments are uniform.
Value map_parts(const OpContext& c, const Lanes& lanes, llvm::ArrayRef<Value> args,
                llvm::function_ref<llvm::Value*(llvm::ArrayRef<llvm::Value*>)> op);

// <0, 1, ..., width-1> in an integer type.
llvm::Value* lane_numbers(llvm::Type* type, unsigned width);

}  // namespace mlcc::codegen::cpu
