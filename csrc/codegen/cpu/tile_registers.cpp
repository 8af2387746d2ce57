#include "codegen/cpu/tile_registers.h"

#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>
#include <string>

#include "codegen/cpu/counted_loop.h"
#include "support/error.h"

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
    return llvm::Intrinsic::x86_tdpbf16ps;
  if (!c.has.amx_int8 || !is_byte(a) || !is_byte(b)) return llvm::Intrinsic::not_intrinsic;
  if (a == DType::kI8)
    return b == DType::kI8 ? llvm::Intrinsic::x86_tdpbssd : llvm::Intrinsic::x86_tdpbsud;
  return b == DType::kI8 ? llvm::Intrinsic::x86_tdpbusd : llvm::Intrinsic::x86_tdpbuud;
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

// Numbers of registers: four of sums, row by row, two of A and two of B.
constexpr int64_t kFirstOfA = 4, kFirstOfB = 6;

constexpr llvm::StringRef kConfigured = "tiles.configured";

// Where a function keeps which shapes its registers have; null if it has none.
llvm::AllocaInst* configured_in(llvm::Function& function) {
  for (llvm::Instruction& instruction : function.getEntryBlock())
    if (instruction.getName() == kConfigured) return llvm::cast<llvm::AllocaInst>(&instruction);
  return nullptr;
}

class RegisterEmitter {
 public:
  // `words` of the depth axis before the last one, a multiple of `step`, which a register's row
  // takes.
  RegisterEmitter(const OpContext& c, const Contraction& tile, llvm::Intrinsic::ID product,
                  llvm::Value* words, int64_t step)
      : ir_(c.ir), tile_(tile), product_(product), word_axis_(tile.depths.size() - 2),
        depths_(tile.depths), step_(step) {
    depths_[word_axis_] = words;
  }

  void emit() {
    for (const Part& rows : cut(0, tile_.rows, kMostOfBlock * kRows))
      for (const Part& columns : cut(0, tile_.columns, kMostOfBlock * kWordsOfRow)) {
        rows_ = cut(rows.first, rows.count, kRows);
        columns_ = cut(columns.first, columns.count, kWordsOfRow);
        // The first block of rows asks, for all columns.
        asks_ = tile_.ahead != nullptr && rows.first == 0 && columns.first == 0;
        configure();
        emit_block();
      }
  }

 private:
  llvm::Value* integer(int64_t value) { return ir_.getInt64(static_cast<uint64_t>(value)); }
  llvm::Value* number(int64_t tile) { return ir_.getInt8(static_cast<uint8_t>(tile)); }
  int64_t number_of_sum(size_t row, size_t column) const {
    return kMostOfBlock * static_cast<int64_t>(row) + static_cast<int64_t>(column);
  }
  llvm::Value* behind(llvm::Value* pointer, llvm::Value* step, int64_t count) {
    if (count == 0) return pointer;
    return ir_.CreateGEP(ir_.getInt8Ty(), pointer, ir_.CreateMul(step, integer(count)));
  }

  // -- shapes
  // The operand of `ldtilecfg` for the block, one for all blocks that are alike.
  llvm::Constant* shapes(llvm::Module& module) {
    std::array<uint8_t, 64> bytes = {1};  // the palette
    std::string name = "tiles";
    const auto set = [&](int64_t tile, int64_t rows, int64_t row_bytes) {
      bytes[static_cast<size_t>(16 + 2 * tile)] = static_cast<uint8_t>(row_bytes);
      bytes[static_cast<size_t>(48 + tile)] = static_cast<uint8_t>(rows);
      name += detail::join(".", tile, ":", rows, "x", row_bytes);
    };
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (size_t j = 0; j < columns_.size(); ++j)
        set(number_of_sum(i, j), rows_[i].count, columns_[j].count * kWordBytes);
      set(kFirstOfA + static_cast<int64_t>(i), rows_[i].count, step_ * kWordBytes);
    }
    for (size_t j = 0; j < columns_.size(); ++j)
      set(kFirstOfB + static_cast<int64_t>(j), step_, columns_[j].count * kWordBytes);
    if (llvm::GlobalVariable* made = module.getNamedGlobal(name)) return made;
    llvm::Constant* value = llvm::ConstantDataArray::get(ir_.getContext(), bytes);
    auto* made = new llvm::GlobalVariable(module, value->getType(), /*isConstant=*/true,
                                          llvm::GlobalValue::PrivateLinkage, value, name);
    made->setAlignment(llvm::Align(bytes.size()));
    return made;
  }

  // Gives the registers their shapes, unless they have them: that takes as long as some products.
  void configure() {
    llvm::Function* function = ir_.GetInsertBlock()->getParent();
    llvm::Constant* config = shapes(*function->getParent());
    llvm::AllocaInst* configured = configured_in(*function);
    if (configured == nullptr) {
      llvm::BasicBlock& entry = function->getEntryBlock();
      llvm::IRBuilder<> at_entry(&entry, entry.begin());
      configured = at_entry.CreateAlloca(ir_.getPtrTy(), nullptr, kConfigured);
      at_entry.CreateStore(llvm::ConstantPointerNull::get(ir_.getPtrTy()), configured);
    }
    llvm::LLVMContext& context = ir_.getContext();
    auto* change = llvm::BasicBlock::Create(context, "configure", function);
    auto* go_on = llvm::BasicBlock::Create(context, "configured", function);
    llvm::Value* is_other = ir_.CreateICmpNE(ir_.CreateLoad(ir_.getPtrTy(), configured), config);
    ir_.CreateCondBr(is_other, change, go_on);
    ir_.SetInsertPoint(change);
    ir_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {config});
    ir_.CreateStore(config, configured);
    ir_.CreateBr(go_on);
    ir_.SetInsertPoint(go_on);
  }

  // -- a block
  void load(int64_t tile, llvm::Value* pointer, llvm::Value* step) {
    load_by(llvm::Intrinsic::x86_tileloadd64, tile, pointer, step);
  }
  // Of B, which goes by while A's rows stay in a first-level cache for the next columns: told so,
  // the cache gives up B's lines first (decision 0025).
  void load_passing(int64_t tile, llvm::Value* pointer, llvm::Value* step) {
    load_by(llvm::Intrinsic::x86_tileloaddt164, tile, pointer, step);
  }
  void load_by(llvm::Intrinsic::ID how, int64_t tile, llvm::Value* pointer, llvm::Value* step) {
    ir_.CreateIntrinsic(how, {}, {number(tile), pointer, step});
  }

  template <typename Body>
  void for_each_sum(const Body& body) {
    for (size_t i = 0; i < rows_.size(); ++i)
      for (size_t j = 0; j < columns_.size(); ++j) {
        llvm::Value* row = behind(tile_.c.origin, tile_.c.steps[0], rows_[i].first);
        body(number_of_sum(i, j), behind(row, tile_.c.steps[1], columns_[j].first));
      }
  }

  void emit_block() {
    for_each_sum([&](int64_t sum, llvm::Value* place) {
      if (tile_.adds)
        load(sum, place, tile_.c.steps[0]);
      else
        ir_.CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {number(sum)});
    });
    emit_axis(0, behind(tile_.a.origin, tile_.a.steps[0], rows_[0].first),
              behind(tile_.b.origin, tile_.b.steps[0], columns_[0].first));
    for_each_sum([&](int64_t sum, llvm::Value* place) {
      ir_.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64, {},
                          {number(sum), place, tile_.c.steps[0]});
    });
  }

  // Runs the depth axes from `axis` on; of the one of words as many at once as a register's row
  // takes.
  void emit_axis(size_t axis, llvm::Value* a, llvm::Value* b) {
    const bool is_of_words = axis == word_axis_;
    const int64_t step = is_of_words ? step_ : 1;
    emit_counted_loop(ir_, integer(0), depths_[axis], step, {a, b},
                      [&](llvm::Value*, llvm::ArrayRef<llvm::Value*> at) {
                        if (is_of_words)
                          emit_step(at[0], at[1]);
                        else
                          emit_axis(axis + 1, at[0], at[1]);
                        return Parts{behind(at[0], tile_.a.steps[axis + 1], step),
                                     behind(at[1], tile_.b.steps[axis + 1], step)};
                      });
  }

  // Each register is loaded right before the first product that takes it.
  void emit_step(llvm::Value* a, llvm::Value* b) {
    if (asks_) emit_lines_ahead(ir_, tile_, b, step_ * tile_.columns * kWordBytes);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t of_a = kFirstOfA + static_cast<int64_t>(i);
      load(of_a, behind(a, tile_.a.steps[0], rows_[i].first - rows_[0].first), tile_.a.steps[0]);
      for (size_t j = 0; j < columns_.size(); ++j) {
        const int64_t of_b = kFirstOfB + static_cast<int64_t>(j);
        if (i == 0)
          load_passing(of_b, behind(b, tile_.b.steps[0], columns_[j].first - columns_[0].first),
                       tile_.b.steps[word_axis_ + 1]);
        ir_.CreateIntrinsic(product_, {},
                            {number(number_of_sum(i, j)), number(of_a), number(of_b)});
      }
    }
  }

  llvm::IRBuilder<>& ir_;
  const Contraction& tile_;
  const llvm::Intrinsic::ID product_;
  const size_t word_axis_;
  Parts depths_;
  const int64_t step_;
  // Of the block that is emitted.
  std::vector<Part> rows_, columns_;
  bool asks_ = false;
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

// Words of a register's row, of so many: as many in each step where that takes no more steps.
int64_t words_of_step(int64_t words) {
  const int64_t steps = (words + kWordsOfRow - 1) / kWordsOfRow;
  return words % steps == 0 ? words / steps : kWordsOfRow;
}

}  // namespace

bool emit_tile_registers(const OpContext& c, const Contraction& contraction,
                         llvm::function_ref<void(const Contraction&)> emit_rest) {
  const llvm::Intrinsic::ID product = product_of(c, contraction);
  if (product == llvm::Intrinsic::not_intrinsic || !has_layout(contraction) ||
      contraction.b.low_columns > 0)
    return false;
  llvm::IRBuilder<>& ir = c.ir;
  const size_t axis = contraction.depths.size() - 2;
  llvm::Value* depth = contraction.depths[axis];
  llvm::Value *words = nullptr, *rest = nullptr;
  int64_t step = kWordsOfRow, known_rest = 0;
  const auto* known = llvm::dyn_cast<llvm::ConstantInt>(depth);
  if (known != nullptr) {
    const int64_t count = known->getSExtValue();
    if (count <= 0) return false;
    step = words_of_step(count);
    known_rest = count % step;
    words = ir.getInt64(static_cast<uint64_t>(count - known_rest));
    rest = ir.getInt64(static_cast<uint64_t>(known_rest));
  } else {
    depth = ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, depth, ir.getInt64(0));
    rest = ir.CreateAnd(depth, ir.getInt64(kWordsOfRow - 1));
    words = ir.CreateSub(depth, rest);
  }
  // A sum of floats is rounded before it is added to C; that of integers may begin with it.
  Contraction tile = contraction;
  const bool has_scratch = contraction.adds && is_float(contraction.c.dtype);
  if (has_scratch) {
    tile.c = make_scratch(c, contraction);
    tile.adds = false;
  }
  RegisterEmitter(c, tile, product, words, step).emit();
  tile.adds = true;
  for (TileOperand* operand : {&tile.a, &tile.b})
    operand->origin = ir.CreateGEP(ir.getInt8Ty(), operand->origin,
                                   ir.CreateMul(operand->steps[axis + 1], words));
  tile.depths[axis] = rest;
  tile.ahead = nullptr;
  if (known == nullptr)
    emit_guarded(ir, ir.CreateIsNotNull(rest), [&] { emit_rest(tile); });
  else if (known_rest > 0)
    RegisterEmitter(c, tile, product, rest, known_rest).emit();
  if (has_scratch) add_scratch(c, tile.c, contraction);
  return true;
}

void release_tile_registers(llvm::Function& function) {
  if (configured_in(function) == nullptr) return;
  for (llvm::BasicBlock& block : function)
    if (auto* end = llvm::dyn_cast<llvm::ReturnInst>(block.getTerminator()))
      llvm::IRBuilder<>(end).CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {});
}

}  // namespace mlcc::codegen::cpu
