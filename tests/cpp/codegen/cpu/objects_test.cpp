// Objects are complete: no op or cast, on no CPU, leaves an undefined symbol behind.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "codegen/cpu/client.h"
#include "harness.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr const char* kCpus[] = {"x86-64", "haswell", "znver4", "cortex-a72"};

template <typename T>
T read_at(const std::string& bytes, size_t offset) {
  T value;
  MLCC_CHECK(offset + sizeof(T) <= bytes.size(), "object of ", bytes.size(), " bytes");
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Their names, separated by blanks.
std::string undefined_symbols(const std::string& object) {
  const auto header = read_at<Elf64_Ehdr>(object, 0);
  const auto section = [&](size_t i) {
    return read_at<Elf64_Shdr>(object, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  std::string names;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr symbols = section(i);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr strings = section(symbols.sh_link);
    for (size_t s = 1; s < symbols.sh_size / sizeof(Elf64_Sym); ++s) {  // the first one is none
      const auto symbol = read_at<Elf64_Sym>(object, symbols.sh_offset + s * sizeof(Elf64_Sym));
      if (symbol.st_shndx != SHN_UNDEF) continue;
      if (!names.empty()) names += ' ';
      names += object.c_str() + strings.sh_offset + symbol.st_name;
    }
  }
  return names;
}

bool takes(loop::OpClass op_class, DType dtype) {
  switch (op_class) {
  case loop::OpClass::kArith: return dtype != DType::kBool;
  case loop::OpClass::kInteger: return is_integer(dtype);
  case loop::OpClass::kFloat:
  case loop::OpClass::kFunction:
  case loop::OpClass::kTest: return is_float(dtype);
  case loop::OpClass::kLogic: return !is_float(dtype);
  case loop::OpClass::kCompare:
  case loop::OpClass::kSelect: return true;
  }
  return false;
}

// Of one op: for scalars, and for vectors with what is left of them.
std::string kernel_of(loop::ScalarOp op, DType dtype) {
  const loop::OpClass op_class = loop::scalar_op_class(op);
  const bool is_test = op_class == loop::OpClass::kCompare || op_class == loop::OpClass::kTest;
  std::string name(loop::scalar_op_name(op));
  const auto call = [&](const std::string& i) {
    const std::string x = "%x[" + i + "]", y = "%y[" + i + "]";
    if (op_class == loop::OpClass::kSelect) return "select(%c[" + i + "], " + x + ", " + y + ")";
    const std::string arguments[] = {x, x + ", " + y, x + ", " + y + ", " + x};
    return name + "(" + arguments[loop::scalar_op_arity(op) - 1] + ")";
  };
  return substitute(R"(
kernel @k(%n: i64; %c: in bool[%n], %x: in $T[%n], %y: in $T[%n], %z: out $R[%n]) {
  for %i in 0..%n { store %z[%i] = $A }
  for %j in 0..%n vector(16) { store %z[%j] = $B }
})",
                    {{"T", std::string(dtype_name(dtype))},
                     {"R", is_test ? "bool" : std::string(dtype_name(dtype))},
                     {"A", call("%i")},
                     {"B", call("%j")}});
}

class Objects : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto opened = open_cpu_backend(MLCC_LLVM_LIBRARY, GetParam());
    if (!opened) GTEST_SKIP() << opened.reason();
    backend_ = *opened;
  }
  void expect_complete(const std::string& text) {
    const auto code = backend_->compile({.kernels = {{.text = text}}});
    if (!code) return;  // a CPU without the instructions says so
    EXPECT_EQ(undefined_symbols(code->bytes), "") << text;
    ++num_compiled_;
  }

  std::shared_ptr<Backend> backend_;
  int num_compiled_ = 0;
};

TEST_P(Objects, of_all_ops_are_complete) {
  constexpr DType kDTypes[] = {DType::kU8, DType::kI64, DType::kF32, DType::kF64};
  constexpr const char* kOps[] = {
#define SCALAR_OP(enumerator, text, arity, op_class, meaning) text,
#include "loop/scalar_ops.def"
#undef SCALAR_OP
  };
  for (const char* name : kOps) {
    const loop::ScalarOp op = *loop::parse_scalar_op(name);
    for (DType dtype : kDTypes)
      if (takes(loop::scalar_op_class(op), dtype)) expect_complete(kernel_of(op, dtype));
  }
  EXPECT_GT(num_compiled_, 100);
}

TEST_P(Objects, of_all_casts_are_complete) {
  constexpr DType kDTypes[] = {DType::kBool, DType::kU8,   DType::kI32, DType::kI64,
                               DType::kF16,  DType::kBF16, DType::kF32, DType::kF64};
  for (DType from : kDTypes)
    for (DType to : kDTypes)
      if (from != to)
        expect_complete(
            substitute(R"(
kernel @k(%n: i64; %x: in $F[%n], %y: out $T[%n]) {
  for %i in 0..%n { store %y[%i] = $T(%x[%i]) }
  for %j in 0..%n vector(16) { store %y[%j] = $T(%x[%j]) }
})",
                       {{"F", std::string(dtype_name(from))}, {"T", std::string(dtype_name(to))}}));
  EXPECT_EQ(num_compiled_, 56);
}

INSTANTIATE_TEST_SUITE_P(all, Objects, ::testing::ValuesIn(kCpus), [](const auto& info) {
  std::string name = info.param;
  for (char& letter : name)
    if (letter == '-') letter = '_';
  return name;
});

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
