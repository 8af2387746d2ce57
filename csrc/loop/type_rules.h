// The typing rules of the loop IR, each stated once: every make() checks them (a violation is a
// bug) and the parser asks them first (a violation is the text's fault). A function returns what is
// wrong, or nothing.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "loop/ir.h"

namespace mlcc::loop {

using TypeError = std::optional<std::string>;

TypeError constant_type_error(DType dtype, uint64_t bits);
TypeError index_type_error(const Buffer& buffer, std::span<const Expr> indices);
TypeError load_type_error(const Buffer& buffer, std::span<const Expr> indices, Expr mask,
                          Expr otherwise);
// Whether `op` may be applied to operands of this dtype (for a select: its second and third).
TypeError operand_type_error(ScalarOp op, DType dtype);
TypeError apply_type_error(ScalarOp op, std::span<const Expr> args);
DType apply_result_type(ScalarOp op, DType operands);

TypeError buffer_type_error(const Buffer& buffer);
TypeError let_type_error(const Variable& variable, Expr value);
TypeError store_type_error(const Buffer& buffer, std::span<const Expr> indices, Expr value,
                           Expr mask);
TypeError streams_type_error(const Buffer& buffer, Expr streams);
TypeError atomic_type_error(ScalarOp op, const Buffer& buffer, std::span<const Expr> indices,
                            Expr value, Expr mask);
TypeError loop_type_error(const Variable& variable, Expr begin, Expr end, const LoopMode& mode);
TypeError reduce_type_error(std::span<const Carried> carried, std::span<const Expr> yields,
                            const std::optional<Combine>& combine);
TypeError condition_type_error(Expr condition);
TypeError details_type_error(std::span<const Expr> details);
TypeError contract_type_error(const TileRef& c, const TileRef& a, const TileRef& b, int64_t rows,
                              int64_t columns, Expr live_columns, const std::vector<Expr>& depths,
                              const LinesAhead& ahead);

}  // namespace mlcc::loop
