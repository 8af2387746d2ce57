#include "codegen/cpu/client.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "harness.h"
#include "loop/text.h"
#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr const char* kAddOne = R"(
kernel @add_one(%n: i64; %x: in f32[%n], %y: out f32[%n]) {
  for %i in 0..%n vector { store %y[%i] = %x[%i] + 1.0 }
})";

TEST(Client, target_of_this_machine) {
  const Target& target = host_backend().target();
  EXPECT_EQ(target.backend, "cpu");
  EXPECT_FALSE(target.cpu.empty());
  EXPECT_NE(target.emitter.find("LLVM 19"), std::string::npos);
  EXPECT_NE(target.str().find(target.cpu), std::string::npos);
}

TEST(Client, cpu_by_name) {
  const auto haswell = open_cpu_backend(MLCC_LLVM_LIBRARY, "haswell");
  ASSERT_TRUE(haswell);
  EXPECT_EQ((*haswell)->target().vector_bits, 256);
  const auto scalar = open_cpu_backend(MLCC_LLVM_LIBRARY, "sandybridge");
  ASSERT_TRUE(scalar);
  EXPECT_EQ((*scalar)->target().vector_bits, 0);
  const auto wide = open_cpu_backend(MLCC_LLVM_LIBRARY, "skylake-avx512");
  ASSERT_TRUE(wide);
  EXPECT_EQ((*wide)->target().vector_bits, 512);
  const auto arm = open_cpu_backend(MLCC_LLVM_LIBRARY, "neoverse-n1");
  EXPECT_EQ(bool(arm), MLCC_TESTS_AARCH64);
  if (arm)
    EXPECT_EQ((*arm)->target().vector_bits, 128);
  else
    EXPECT_NE(arm.reason().find("MLCC_LLVM_TARGETS"), std::string::npos);
  const auto unknown = open_cpu_backend(MLCC_LLVM_LIBRARY, "pentium9");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.reason().find("pentium9"), std::string::npos);
}

TEST(Client, library_that_is_not_there) {
  const auto backend = open_cpu_backend("/nonexistent/libmlcc_llvm.so", "");
  ASSERT_FALSE(backend);
  EXPECT_NE(backend.reason().find("nonexistent"), std::string::npos);
  EXPECT_FALSE(open_object_loader("/nonexistent/libmlcc_llvm.so"));
}

TEST(Client, dumps_only_when_asked_for) {
  const auto quiet = host_backend().compile({.kernels = {{.text = kAddOne}}});
  ASSERT_TRUE(quiet);
  EXPECT_FALSE(quiet->bytes.empty());
  EXPECT_TRUE(quiet->llvm_text.empty());
  EXPECT_TRUE(quiet->asm_text.empty());
  const auto loud = host_backend().compile(
      {.kernels = {{.text = kAddOne}}, .want_llvm_text = true, .want_asm_text = true});
  ASSERT_TRUE(loud);
  EXPECT_NE(loud->llvm_text.find("define i64 @add_one.p0"), std::string::npos);
  EXPECT_NE(loud->asm_text.find("add_one.p0:"), std::string::npos);
  EXPECT_EQ(loud->bytes, quiet->bytes);
}

TEST(Client, same_text_gives_same_bytes) {
  EXPECT_EQ(host_backend().compile({.kernels = {{.text = kAddOne}}})->bytes,
            host_backend().compile({.kernels = {{.text = kAddOne}}})->bytes);
}

std::string reason_for(const std::string& text) {
  const auto code = host_backend().compile({.kernels = {{.text = text}}});
  return code ? "" : code.reason();
}

TEST(Client, reasons_for_what_has_no_code) {
  EXPECT_NE(reason_for("kernel @k(%n: i64; %x: inout f32[%n]) { for %i in 0..%n vector(12) { store "
                       "%x[%i] = 0.0 } }")
                .find("12 lanes"),
            std::string::npos);
  EXPECT_NE(reason_for("kernel @k(%n: i64; %x: inout f32[%n]) { for %i in 0..%n { alloc %t: stack "
                       "f32[1000000]\n store %t[0] = 1.0 } }")
                .find("stack"),
            std::string::npos);
}

TEST(Client, malformed_text_is_a_bug_of_ours) {
  EXPECT_THROW((void)host_backend().compile({.kernels = {{.text = "kernel @k("}}}), InternalError);
}

TEST(Client, bad_objects_are_errors) {
  const auto loader = *open_object_loader(MLCC_LLVM_LIBRARY);
  EXPECT_THROW((void)loader->load("no object", "add_one", 1), Error);
  EXPECT_THROW((void)loader->load("", "add_one", 1), Error);
  const auto code = host_backend().compile({.kernels = {{.text = kAddOne}}});
  EXPECT_THROW((void)loader->load(code->bytes, "other_name", 1), Error);
  EXPECT_THROW((void)loader->load(code->bytes, "add_one", 2), Error);
  EXPECT_THROW((void)loader->load(std::string_view(code->bytes).substr(0, code->bytes.size() / 2),
                                  "add_one", 1),
               Error);
}

TEST(Client, objects_of_other_machines_are_errors) {
  const auto arm = open_cpu_backend(MLCC_LLVM_LIBRARY, "neoverse-n1");
  if (!arm) GTEST_SKIP() << arm.reason();
  const auto code = (*arm)->compile({.kernels = {{.text = kAddOne}}});
  ASSERT_TRUE(code);
  const auto loader = *open_object_loader(MLCC_LLVM_LIBRARY);
  EXPECT_THROW((void)loader->load(code->bytes, "add_one", 1), Error);
}

TEST(Client, kernels_of_one_name_live_side_by_side_and_outlast_their_loader) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, kAddOne);
  const auto code = host_backend().compile({.kernels = {{.text = kAddOne}}});
  auto loader = *open_object_loader(MLCC_LLVM_LIBRARY);
  const auto first = loader->load(code->bytes, "add_one", 1);
  const auto second = loader->load(code->bytes, "add_one", 1);
  EXPECT_NE(runtime::host_phases(*first)[0], runtime::host_phases(*second)[0]);
  loader.reset();
  std::vector<float> x = {1, 2, 3}, y(3);
  std::mt19937_64 random(1);
  run_kernel(kernel, {.host = second, .guest = nullptr}, {3}, {x, y}, random);
  EXPECT_EQ(y, (std::vector<float>{2, 3, 4}));
}

// What gdb reads of the list of objects ("JIT Compilation Interface" in its manual).
struct GdbEntry {
  GdbEntry* next;
  GdbEntry* previous;
};
struct GdbDescriptor {
  uint32_t version, action;
  GdbEntry* relevant;
  GdbEntry* first;
};

TEST(Client, objects_are_in_the_list_of_gdb_as_long_as_they_live) {
  const auto loader = *open_object_loader(MLCC_LLVM_LIBRARY);
  void* library = ::dlopen(MLCC_LLVM_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto* list = static_cast<const GdbDescriptor*>(::dlsym(library, "__jit_debug_descriptor"));
  ASSERT_NE(list, nullptr);
  const auto count = [&] {
    int entries = 0;
    const GdbEntry* previous = nullptr;
    for (const GdbEntry* entry = list->first; entry; entry = entry->next) {
      EXPECT_EQ(entry->previous, previous);
      previous = entry;
      ++entries;
    }
    return entries;
  };
  const int before = count();
  const auto code = host_backend().compile({.kernels = {{.text = kAddOne}}});
  auto first = loader->load(code->bytes, "add_one", 1);
  auto second = loader->load(code->bytes, "add_one", 1);
  auto third = loader->load(code->bytes, "add_one", 1);
  EXPECT_EQ(count(), before + 3);
  second.reset();
  EXPECT_EQ(count(), before + 2);
  third.reset();
  first.reset();
  EXPECT_EQ(count(), before);
  ::dlclose(library);
}

TEST(Client, compiles_and_loads_on_several_threads) {
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      loop::Arena arena;
      const loop::Kernel kernel = loop::parse_kernel(arena, kAddOne);
      for (int i = 0; i < 5; ++i) {
        const auto loaded =
            load(host_backend().compile({.kernels = {{.text = kAddOne}}})->bytes, kernel);
        std::vector<float> x(50, static_cast<float>(i)), y(50);
        std::mt19937_64 random(1);
        run_kernel(kernel, loaded, {50}, {x, y}, random);
        right[static_cast<size_t>(t)] += y[49] == static_cast<float>(i) + 1.0F;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 5));
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
