#include "codegen/cpu/tile_registers.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>

#include "codegen/cpu/counted_loop.h"

namespace mlcc::codegen::cpu {
namespace {

constexpr int64_t kRows = 16, kRowBytes = 64, kWordBytes = 4;
constexpr int64_t kWordsOfRow = kRowBytes / kWordBytes;
// Registers along rows and along columns of a block: 2 x 2 of sums, 2 of A and 2 of B are all
// eight.
constexpr int64_t kMostOfBlock = 2;

// Of a block, along rows or along columns.
struct Part {
  int64_t first, count;
};

std::vector<Part> cut(int64_t first, int64_t count, int64_t most) {
  std::vector<Part> parts;
  for (int64_t at = 0; at < count; at += most)
    parts.push_back({first + at, std::min(most, count - at)});
  return parts;
}

llvm::Intrinsic::ID product_of(const OpContext& c, const Contraction& tile) {
  const DType a = tile.a.dtype, b = tile.b.dtype;
  const auto is_byte = [](DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; };
  if (c.has.amx_bf16 && a == DType::kBF16 && b == DType::kBF16)
    return llvm::Intrinsic::x86_tdpbf16ps_internal;
  if (!c.has.amx_int8 || !is_byte(a) || !is_byte(b)) return llvm::Intrinsic::not_intrinsic;
  if (a == DType::kI8)
    return b == DType::kI8 ? llvm::Intrinsic::x86_tdpbssd_internal
                           : llvm::Intrinsic::x86_tdpbsud_internal;
  return b == DType::kI8 ? llvm::Intrinsic::x86_tdpbusd_internal
                         : llvm::Intrinsic::x86_tdpbuud_internal;
}

// Whether the innermost depth axis is a word of both operands, A's words lie side by side along the
// next one, B's and C's along columns.
bool has_layout(const Contraction& tile) {
  const int64_t size = dtype_size(tile.a.dtype);
  const size_t axes = tile.depths.size();
  return axes >= 2 && is_constant(tile.depths.back(), kWordBytes / size) && tile.a.rows.empty() &&
         is_constant(tile.a.steps.back(), size) && is_constant(tile.b.steps.back(), size) &&
         is_constant(tile.a.steps[axes - 1], kWordBytes) &&
         is_constant(tile.b.steps[0], kWordBytes) && is_constant(tile.c.steps[1], kWordBytes);
}

// A function that code for a block is moved to. LLVM gives a function's tile registers their shapes
// once, at its beginning, and runs out of them where blocks of several shapes stand in one.
class BlockFunction {
 public:
  explicit BlockFunction(llvm::IRBuilder<>& ir)
      : ir_(ir), caller_(ir.GetInsertBlock()->getParent()) {}

  // What the block uses of the caller's values: each becomes a parameter, constants stay.
  void use(llvm::ArrayRef<llvm::Value*> values) {
    for (llvm::Value* value : values)
      if (!llvm::isa<llvm::Constant>(value) && !llvm::is_contained(values_, value))
        values_.push_back(value);
  }

  // Calls the function at the builder's place, and goes into it.
  void begin() {
    llvm::SmallVector<llvm::Type*, 16> types;
    for (llvm::Value* value : values_) types.push_back(value->getType());
    llvm::LLVMContext& context = ir_.getContext();
    function_ = llvm::Function::Create(
        llvm::FunctionType::get(ir_.getVoidTy(), types, /*isVarArg=*/false),
        llvm::Function::InternalLinkage, caller_->getName() + ".tile", caller_->getParent());
    llvm::AttrBuilder attributes(context, caller_->getAttributes().getFnAttrs());
    function_->setAttributes(
        llvm::AttributeList::get(context, llvm::AttributeList::FunctionIndex, attributes));
    function_->addFnAttr(llvm::Attribute::NoInline);
    ir_.CreateCall(function_, values_);
    call_ = ir_.saveIP();
    ir_.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", function_));
  }

  llvm::Value* inside(llvm::Value* value) const {
    const auto* found = llvm::find(values_, value);
    return found == values_.end()
               ? value
               : function_->getArg(static_cast<unsigned>(found - values_.begin()));
  }

  // Back behind the call.
  void end() {
    ir_.CreateRetVoid();
    ir_.restoreIP(call_);
  }

 private:
  llvm::IRBuilder<>& ir_;
  llvm::Function* const caller_;
  Parts values_;
  llvm::Function* function_ = nullptr;
  llvm::IRBuilder<>::InsertPoint call_;
};

class RegisterEmitter {
 public:
  // `words` of the depth axis before the last one, a multiple of kWordsOfRow.
  RegisterEmitter(const OpContext& c, Contraction tile, llvm::Intrinsic::ID product,
                  llvm::Value* words)
      : ir_(c.ir), all_(std::move(tile)), tile_(all_), product_(product),
        word_axis_(all_.depths.size() - 2) {
    all_.depths[word_axis_] = words;
  }

  void emit() {
    for (const Part& rows : cut(0, all_.rows, kMostOfBlock * kRows))
      for (const Part& columns : cut(0, all_.columns, kMostOfBlock * kWordsOfRow)) {
        rows_ = cut(rows.first, rows.count, kRows);
        columns_ = cut(columns.first, columns.count, kWordsOfRow);
        BlockFunction function(ir_);
        for (const TileOperand* operand : {&all_.a, &all_.b, &all_.c}) {
          function.use(operand->origin);
          function.use(operand->steps);
        }
        function.use(all_.depths);
        function.begin();
        tile_ = all_;
        for (TileOperand* operand : {&tile_.a, &tile_.b, &tile_.c}) {
          operand->origin = function.inside(operand->origin);
          for (llvm::Value*& step : operand->steps) step = function.inside(step);
        }
        for (llvm::Value*& depth : tile_.depths) depth = function.inside(depth);
        emit_block();
        function.end();
      }
  }

 private:
  llvm::Value* integer(int64_t value) { return ir_.getInt64(static_cast<uint64_t>(value)); }
  llvm::Value* extent(int64_t value) { return ir_.getInt16(static_cast<uint16_t>(value)); }
  llvm::Value* behind(llvm::Value* pointer, llvm::Value* step, int64_t count) {
    if (count == 0) return pointer;
    return ir_.CreateGEP(ir_.getInt8Ty(), pointer, ir_.CreateMul(step, integer(count)));
  }

  llvm::Value* load(int64_t rows, int64_t row_bytes, llvm::Value* pointer, llvm::Value* step) {
    return ir_.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64_internal, {},
                               {extent(rows), extent(row_bytes), pointer, step});
  }

  llvm::Value* place_in_c(const Part& rows, const Part& columns) {
    llvm::Value* row = behind(tile_.c.origin, tile_.c.steps[0], rows.first);
    return behind(row, tile_.c.steps[1], columns.first);
  }

  void emit_block() {
    Parts sums;
    for (const Part& rows : rows_)
      for (const Part& columns : columns_) sums.push_back(first_sums(rows, columns));
    sums = emit_axis(0, behind(tile_.a.origin, tile_.a.steps[0], rows_[0].first),
                     behind(tile_.b.origin, tile_.b.steps[0], columns_[0].first), std::move(sums));
    llvm::Value** sum = sums.begin();
    for (const Part& rows : rows_)
      for (const Part& columns : columns_)
        ir_.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64_internal, {},
                            {extent(rows.count), extent(columns.count * kWordBytes),
                             place_in_c(rows, columns), tile_.c.steps[0], *sum++});
  }

  llvm::Value* first_sums(const Part& rows, const Part& columns) {
    if (tile_.adds)
      return load(rows.count, columns.count * kWordBytes, place_in_c(rows, columns),
                  tile_.c.steps[0]);
    return ir_.CreateIntrinsic(llvm::Intrinsic::x86_tilezero_internal, {},
                               {extent(rows.count), extent(columns.count * kWordBytes)});
  }

  // Runs the depth axes from `axis` on; of the one of words as many at once as a register's row
  // holds.
  Parts emit_axis(size_t axis, llvm::Value* a, llvm::Value* b, Parts sums) {
    const bool is_of_words = axis == word_axis_;
    const int64_t step = is_of_words ? kWordsOfRow : 1;
    sums.push_back(a);
    sums.push_back(b);
    sums =
        emit_counted_loop(ir_, integer(0), tile_.depths[axis], step, sums,
                          [&](llvm::Value*, llvm::ArrayRef<llvm::Value*> carried) {
                            llvm::Value *at_a = carried[carried.size() - 2], *at_b = carried.back();
                            Parts next(carried.drop_back(2));
                            next = is_of_words ? emit_step(at_a, at_b, std::move(next))
                                               : emit_axis(axis + 1, at_a, at_b, std::move(next));
                            next.push_back(behind(at_a, tile_.a.steps[axis + 1], step));
                            next.push_back(behind(at_b, tile_.b.steps[axis + 1], step));
                            return next;
                          });
    sums.resize(sums.size() - 2);
    return sums;
  }

  Parts emit_step(llvm::Value* a, llvm::Value* b, Parts sums) {
    Parts of_b;
    for (const Part& columns : columns_)
      of_b.push_back(load(kWordsOfRow, columns.count * kWordBytes,
                          behind(b, tile_.b.steps[0], columns.first - columns_[0].first),
                          tile_.b.steps[word_axis_ + 1]));
    llvm::Value** sum = sums.begin();
    for (const Part& rows : rows_) {
      llvm::Value* of_a =
          load(rows.count, kRowBytes, behind(a, tile_.a.steps[0], rows.first - rows_[0].first),
               tile_.a.steps[0]);
      for (size_t i = 0; i < columns_.size(); ++i, ++sum)
        *sum = ir_.CreateIntrinsic(product_, {},
                                   {extent(rows.count), extent(columns_[i].count * kWordBytes),
                                    extent(kRowBytes), *sum, of_a, of_b[i]});
    }
    return sums;
  }

  llvm::IRBuilder<>& ir_;
  Contraction all_;
  Contraction tile_;  // the same, in the values of a block's function
  const llvm::Intrinsic::ID product_;
  const size_t word_axis_;
  // Of the block that is emitted.
  std::vector<Part> rows_, columns_;
};

// A buffer on the stack for the sums of a tile, which are added to C when they are whole.
TileOperand make_scratch(const OpContext& c, const Contraction& tile) {
  llvm::BasicBlock& entry = c.ir.GetInsertBlock()->getParent()->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  llvm::Type* element = memory_type(c.ir.getContext(), tile.c.dtype);
  const int64_t count = tile.rows * tile.columns;
  llvm::AllocaInst* slot =
      at_entry.CreateAlloca(llvm::ArrayType::get(element, static_cast<uint64_t>(count)));
  slot->setAlignment(llvm::Align(kRowBytes));
  TileOperand scratch;
  scratch.dtype = tile.c.dtype;
  scratch.origin = slot;
  scratch.steps = {c.ir.getInt64(static_cast<uint64_t>(kWordBytes * tile.columns)),
                   c.ir.getInt64(kWordBytes)};
  scratch.annotate = [](llvm::Instruction*) {};
  return scratch;
}

void add_scratch(const OpContext& c, const TileOperand& scratch, const Contraction& tile) {
  llvm::IRBuilder<>& ir = c.ir;
  llvm::Type* element = memory_type(ir.getContext(), tile.c.dtype);
  const llvm::Align alignment(kWordBytes);
  const auto integer = [&](int64_t value) { return ir.getInt64(static_cast<uint64_t>(value)); };
  const auto add_row = [&](llvm::Value* row, llvm::ArrayRef<llvm::Value*>) {
    const auto place = [&](const TileOperand& operand, int64_t column) {
      llvm::Value* begin =
          ir.CreateGEP(ir.getInt8Ty(), operand.origin, ir.CreateMul(operand.steps[0], row));
      return ir.CreateGEP(ir.getInt8Ty(), begin, integer(kWordBytes * column));
    };
    int64_t width = kWordsOfRow;
    for (int64_t column = 0; column < tile.columns; column += width) {
      while (width > tile.columns - column) width /= 2;
      llvm::Type* type = with_lanes(element, static_cast<unsigned>(width));
      llvm::LoadInst* old = ir.CreateAlignedLoad(type, place(tile.c, column), alignment);
      llvm::Value* sum =
          ir.CreateFAdd(old, ir.CreateAlignedLoad(type, place(scratch, column), alignment));
      tile.c.annotate(old);
      tile.c.annotate(ir.CreateAlignedStore(sum, place(tile.c, column), alignment));
    }
    return Parts{};
  };
  emit_counted_loop(ir, integer(0), integer(tile.rows), 1, {}, add_row);
}

}  // namespace

bool emit_tile_registers(const OpContext& c, const Contraction& contraction,
                         llvm::function_ref<void(const Contraction&)> emit_rest) {
  const llvm::Intrinsic::ID product = product_of(c, contraction);
  if (product == llvm::Intrinsic::not_intrinsic || !has_layout(contraction)) return false;
  llvm::IRBuilder<>& ir = c.ir;
  const size_t axis = contraction.depths.size() - 2;
  llvm::Value* depth =
      ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, contraction.depths[axis], ir.getInt64(0));
  llvm::Value* rest = ir.CreateAnd(depth, ir.getInt64(kWordsOfRow - 1));
  llvm::Value* words = ir.CreateSub(depth, rest);
  if (is_constant(words, 0)) return false;
  // A sum is rounded before it is added to C; that of integers may begin with it.
  Contraction tile = contraction;
  const bool has_scratch = contraction.adds && is_float(contraction.c.dtype);
  if (has_scratch) {
    tile.c = make_scratch(c, contraction);
    tile.adds = false;
  }
  RegisterEmitter(c, tile, product, words).emit();
  if (!is_constant(rest, 0)) {
    const auto advance = [&](TileOperand& operand) {
      operand.origin = ir.CreateGEP(ir.getInt8Ty(), operand.origin,
                                    ir.CreateMul(operand.steps[axis + 1], words));
    };
    advance(tile.a);
    advance(tile.b);
    tile.depths[axis] = rest;
    tile.adds = true;
    emit_rest(tile);
  }
  if (has_scratch) add_scratch(c, tile.c, contraction);
  return true;
}

}  // namespace mlcc::codegen::cpu
