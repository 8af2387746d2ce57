#include "harness.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "codegen/cpu/client.h"
#include "loop/interpreter.h"
#include "loop/scalar_value.h"
#include "loop/text.h"
#include "runtime/host_kernel.h"
#include "split_range.h"
#include "support/error.h"
#include "tile_machine.h"

namespace mlcc::codegen::cpu::testing {
namespace {

bool host_runs(const Target& target, const Target& host) {
  // Vector extensions are what differs between the CPUs tested here.
  for (const char* feature : {"+avx2", "+fma", "+f16c", "+avx512f", "+bmi2", "+movbe", "+lzcnt",
                              "+avx512bf16", "+avx512vnni"})
    if (target.features.find(feature) != std::string::npos &&
        host.features.find(feature) == std::string::npos)
      return false;
  return true;
}

std::vector<std::string> words_of(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

int64_t value_of(loop::Expr e, const loop::Kernel& kernel, const std::vector<int64_t>& sizes) {
  const auto symbolic = loop::to_symbolic(e);
  MLCC_CHECK(symbolic, "extent is not symbolic");
  return symbolic->evaluate([&](std::string_view name) {
    for (size_t i = 0; i < kernel.sizes.size(); ++i)
      if (kernel.sizes[i]->name == name) return sizes[i];
    MLCC_UNREACHABLE("unknown size ", name);
  });
}

// Elements from the first to the last that the shape reaches.
int64_t element_span(const loop::Buffer& buffer, const loop::Kernel& kernel,
                     const std::vector<int64_t>& sizes) {
  int64_t dense = 1;
  int64_t last = 0;
  for (size_t d = buffer.shape.size(); d-- > 0;) {
    const int64_t extent = value_of(buffer.shape[d], kernel, sizes);
    if (extent == 0) return 0;
    const int64_t stride =
        buffer.strides.empty() ? dense : value_of(buffer.strides[d], kernel, sizes);
    last += (extent - 1) * stride;
    dense *= extent;
  }
  return last + 1;
}

void write_element(std::span<uint8_t> bytes, DType dtype, size_t i, uint64_t bits) {
  const auto size = static_cast<size_t>(dtype_size(dtype));
  std::memcpy(bytes.data() + i * size, &bits, size);
}

uint64_t read_element(std::span<const uint8_t> bytes, DType dtype, size_t i) {
  const auto size = static_cast<size_t>(dtype_size(dtype));
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + i * size, size);
  return bits;
}

uint64_t random_element(DType dtype, const Comparison& how, const IntRange* range,
                        std::mt19937_64& random) {
  const uint64_t dice = random() % 16;
  if (range) {
    const int64_t value =
        range->low +
        static_cast<int64_t>(random() % static_cast<uint64_t>(range->high - range->low + 1));
    return is_float(dtype) ? loop::encode_float(dtype, static_cast<double>(value))
                           : loop::encode_int(dtype, value);
  }
  if (dtype == DType::kBool) return random() & 1;
  const uint64_t mask = ~uint64_t{0} >> (64 - 8 * dtype_size(dtype));
  if (!is_float(dtype))
    return dice < 4 ? random() & mask
                    : loop::encode_int(dtype, static_cast<int64_t>(random() % 41) - 20);
  if (how.specials && dice == 0) return random() & mask;
  if (how.specials && dice == 1) {
    const double values[] = {NAN,   INFINITY, -INFINITY, 0.0,    -0.0,
                             1e-40, -3e-42,   3e38,      1e-310, -1e300};
    return loop::encode_float(dtype, values[random() % 10]);
  }
  if (dice < 6)
    return loop::encode_float(dtype, static_cast<double>(static_cast<int64_t>(random() % 17) - 8));
  return loop::encode_float(dtype, std::normal_distribution<double>(0, 3)(random));
}

bool is_close(DType dtype, uint64_t expected_bits, uint64_t found_bits, const Comparison& how) {
  if (expected_bits == found_bits) return true;
  if (!is_float(dtype)) return false;
  const double expected = loop::decode_float(dtype, expected_bits);
  const double found = loop::decode_float(dtype, found_bits);
  if (std::isnan(expected) || std::isnan(found)) return std::isnan(expected) && std::isnan(found);
  if (expected == found) return expected != 0 || !how.zero_sign;
  if (std::isinf(expected) || std::isinf(found)) return false;
  const double error = std::abs(expected - found);
  if (error <= how.relative * std::max(1.0, std::abs(expected))) return true;
  const uint64_t magnitude = loop::encode_float(dtype, std::abs(expected));
  const double unit = loop::decode_float(dtype, magnitude + 1) - std::abs(expected);
  return error <= how.ulps * unit;
}

std::vector<GuardedBuffer> make_buffers(const loop::Kernel& kernel,
                                        const std::vector<int64_t>& sizes, const Comparison& how) {
  std::mt19937_64 random(how.seed);
  std::vector<GuardedBuffer> buffers;
  for (const loop::Buffer* buffer : kernel.buffers) {
    const int64_t elements = element_span(*buffer, kernel, sizes);
    buffers.emplace_back(static_cast<size_t>(elements * dtype_size(buffer->dtype)));
    const auto range = how.ranges.find(buffer->name);
    for (size_t i = 0; i < static_cast<size_t>(elements); ++i)
      write_element(buffers.back().bytes(), buffer->dtype, i,
                    random_element(buffer->dtype, how,
                                   range == how.ranges.end() ? nullptr : &range->second, random));
  }
  return buffers;
}

std::vector<void*> pointers_of(const std::vector<GuardedBuffer>& buffers) {
  std::vector<void*> pointers;
  for (const GuardedBuffer& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

void compare_buffers(const loop::Kernel& kernel, const std::vector<GuardedBuffer>& expected,
                     const std::vector<GuardedBuffer>& found, const Comparison& how) {
  for (size_t b = 0; b < expected.size(); ++b) {
    const loop::Buffer& buffer = *kernel.buffers[b];
    if (buffer.access == loop::Access::kScratch) continue;
    const size_t count = expected[b].bytes().size() / static_cast<size_t>(dtype_size(buffer.dtype));
    int reported = 0;
    for (size_t i = 0; i < count && reported < 4; ++i) {
      const uint64_t want = read_element(expected[b].bytes(), buffer.dtype, i);
      const uint64_t have = read_element(found[b].bytes(), buffer.dtype, i);
      if (is_close(buffer.dtype, want, have, how)) continue;
      ++reported;
      ADD_FAILURE() << "%" << buffer.name << " element " << i << " of " << count << ": found 0x"
                    << std::hex << have << ", expected 0x" << want
                    << (is_float(buffer.dtype)
                            ? detail::join(" (", loop::decode_float(buffer.dtype, have), ", ",
                                           loop::decode_float(buffer.dtype, want), ")")
                            : std::string());
    }
  }
}

struct Compiled {
  std::string text;
  Code code;
  std::string reason;  // why there is no code
};

// Tests run one text with many sizes: the last compilation of each backend is kept.
const Compiled& compile(size_t backend, const std::string& text, const loop::Kernel& kernel) {
  static std::vector<Compiled> last(backends().size());
  Compiled& entry = last[backend];
  if (entry.text == text) return entry;
  const auto code = backends()[backend]->compile({.kernels = {{.text = text}}});
  entry = {.text = text,
           .code = code ? load(code->bytes, kernel) : Code{},
           .reason = code ? "" : code.reason()};
  return entry;
}

int64_t extent_of(const loop::Kernel& kernel, size_t phase, const std::vector<int64_t>& sizes) {
  const loop::For* loop = loop::parallel_loop(kernel.phases[phase]);
  return loop ? value_of(loop->end, kernel, sizes) - value_of(loop->begin, kernel, sizes) : 1;
}

std::string describe(const std::vector<int64_t>& sizes) {
  std::string text;
  for (int64_t size : sizes) text += " " + std::to_string(size);
  return text;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes) : bytes_(bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapped_ = (bytes + page - 1) / page * page + page;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MLCC_CHECK(mapping_ != MAP_FAILED, "mmap of ", mapped_, " bytes");
  auto* end = static_cast<uint8_t*>(mapping_) + mapped_ - page;
  MLCC_CHECK(mprotect(end, page, PROT_NONE) == 0, "mprotect");
  data_ = end - bytes;
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : mapping_(other.mapping_), mapped_(other.mapped_), data_(other.data_), bytes_(other.bytes_) {
  other.mapping_ = nullptr;
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_) munmap(mapping_, mapped_);
}

const std::vector<std::shared_ptr<Backend>>& backends() {
  static const auto all = [] {
    const char* wanted = std::getenv("MLCC_TEST_CPUS");
    std::vector<std::shared_ptr<Backend>> list;
    for (const std::string& cpu :
         wanted ? words_of(wanted) : std::vector<std::string>{"", "haswell", "x86-64"}) {
      const auto backend = open_cpu_backend(MLCC_LLVM_LIBRARY, cpu);
      MLCC_CHECK(backend, backend.reason());
      const Target& target = (*backend)->target();
      if (target.features.find("+amx-tile") != std::string::npos) install_tile_machine();
      const auto host = open_cpu_backend(MLCC_LLVM_LIBRARY, "");
      if (target.vector_bits == 128 || host_runs(target, (*host)->target()))
        list.push_back(*backend);
      else
        std::printf("%s: does not run here, not tested\n", cpu.c_str());
    }
    return list;
  }();
  return all;
}

const Backend& host_backend() { return *backends()[0]; }

Code load(const std::string& object, const loop::Kernel& kernel) {
  if (aarch64::is_guest_code(object))
    return {.host = nullptr, .guest = std::make_shared<aarch64::GuestKernel>(object, kernel.name)};
  static const auto loader = *open_object_loader(MLCC_LLVM_LIBRARY);
  return {.host = loader->load(object, kernel.name, static_cast<int>(kernel.phases.size())),
          .guest = nullptr};
}

runtime::CheckFailure run_kernel(const loop::Kernel& kernel, const Code& code,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<Memory>& buffers, std::mt19937_64& random) {
  if (code.guest) {
    std::vector<aarch64::GuestRange> ranges;
    for (size_t p = 0; p < kernel.phases.size(); ++p)
      split_range(extent_of(kernel, p, sizes), 5, random, [&](int64_t begin, int64_t end) {
        ranges.push_back({static_cast<int64_t>(p), begin, end});
      });
    std::vector<aarch64::GuestBuffer> memory;
    for (const Memory& buffer : buffers) memory.push_back({buffer.bytes});
    return code.guest->run(memory, sizes, ranges);
  }
  std::vector<void*> pointers;
  for (const Memory& buffer : buffers) pointers.push_back(buffer.bytes.data());
  const runtime::KernelArgs args{pointers.data(), sizes.data()};
  const runtime::ParallelFor split = [&](int64_t n, int64_t,
                                         const std::function<void(int64_t, int64_t)>& body) {
    split_range(n, 5, random, body);
  };
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const runtime::CheckFailure failure = runtime::run_phase(
        runtime::host_phases(*code.host)[p], args, extent_of(kernel, p, sizes), 1, split);
    if (failure.code != 0) return failure;
  }
  return {};
}

void expect_as_interpreted(const std::string& text, const std::vector<int64_t>& sizes,
                           const Comparison& how) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, text);
  const auto expected = make_buffers(kernel, sizes, how);
  loop::CheckDetails details;
  const int64_t expected_code = loop::interpret(kernel, sizes, pointers_of(expected), {}, &details);
  for (size_t i = 0; i < backends().size(); ++i) {
    const Target& target = backends()[i]->target();
    SCOPED_TRACE(detail::join("cpu ", target.cpu, ", sizes", describe(sizes), "\n", text));
    const Compiled& compiled = compile(i, text, kernel);
    if (!compiled.reason.empty()) {
      EXPECT_TRUE(how.needs_fma && target.vector_bits == 0) << compiled.reason;
      continue;
    }
    const auto found = make_buffers(kernel, sizes, how);
    std::mt19937_64 random(how.seed);
    const runtime::CheckFailure failure =
        run_kernel(kernel, compiled.code, sizes, {found.begin(), found.end()}, random);
    EXPECT_EQ(failure.code, expected_code);
    EXPECT_EQ(failure.details, details);
    if (expected_code == 0) compare_buffers(kernel, expected, found, how);
  }
}

std::string substitute(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const std::string key = "$" + name;
    for (size_t at = text.find(key); at != std::string::npos;
         at = text.find(key, at + value.size()))
      text.replace(at, key.size(), value);
  }
  return text;
}

}  // namespace mlcc::codegen::cpu::testing
