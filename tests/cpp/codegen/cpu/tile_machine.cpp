#include "tile_machine.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "support/error.h"

#if defined(__x86_64__)
namespace mlcc::codegen::cpu::testing {
namespace {

// Intel's manual, "TMUL".
constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  std::array<std::array<uint8_t, kMostBytes>, kMostRows> bytes = {};
};

std::array<Tile, kTiles> tiles;
int64_t products = 0;

[[noreturn]] void fail(const char* why) {
  (void)!write(STDERR_FILENO, why, std::strlen(why));
  std::_Exit(1);
}

// An instruction with the prefix VEX and map 0F38.
struct Instruction {
  int prefix;  // 0: none, 1: 66, 2: F3, 3: F2
  int opcode;
  int mod, reg, rm;
  int vvvv;
  int64_t address = 0, stride = 0;  // of a memory operand
  int length = 5;
};

int64_t general_register(const ucontext_t& context, int number) {
  constexpr std::array kNumbers = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kNumbers[static_cast<size_t>(number)]];
}

void decode_memory(const ucontext_t& context, const uint8_t* code, Instruction& instruction) {
  const int high_index = (code[1] & 0x40) != 0 ? 0 : 8, high_base = (code[1] & 0x20) != 0 ? 0 : 8;
  int base = instruction.rm;
  if (instruction.rm == 4) {
    const int sib = code[instruction.length++];
    base = sib & 7;
    const int index = ((sib >> 3) & 7) + high_index;
    if (index != 4) instruction.stride = general_register(context, index) << (sib >> 6);
  }
  const bool has_base = instruction.mod != 0 || base != 5;
  int32_t displacement = 0;
  if (instruction.mod == 1) {
    displacement = static_cast<int8_t>(code[instruction.length++]);
  } else if (instruction.mod == 2 || !has_base) {
    std::memcpy(&displacement, code + instruction.length, sizeof displacement);
    instruction.length += sizeof displacement;
  }
  instruction.address = displacement;
  if (has_base)
    instruction.address += general_register(context, base + high_base);
  else if (instruction.rm == 5)  // behind the instruction
    instruction.address += reinterpret_cast<int64_t>(code + instruction.length);
}

Instruction decode(const ucontext_t& context, const uint8_t* code) {
  Instruction instruction{.prefix = code[2] & 3,
                          .opcode = code[3],
                          .mod = code[4] >> 6,
                          .reg = (code[4] >> 3) & 7,
                          .rm = code[4] & 7,
                          .vvvv = (~code[2] >> 3) & 15};
  if (instruction.mod != 3) decode_memory(context, code, instruction);
  return instruction;
}

void configure(int64_t address) {
  const auto* memory = reinterpret_cast<const uint8_t*>(address);
  if (memory[0] != 1) fail("tile machine: another palette than 1\n");
  for (size_t i = 0; i < kTiles; ++i) {
    uint16_t row_bytes = 0;
    std::memcpy(&row_bytes, memory + 16 + 2 * i, sizeof row_bytes);
    tiles[i] = {.rows = memory[48 + i], .row_bytes = row_bytes};
    if (tiles[i].rows > kMostRows || row_bytes > kMostBytes)
      fail("tile machine: too large a tile\n");
  }
}

void load(Tile& tile, int64_t address, int64_t stride) {
  if (tile.rows == 0) fail("tile machine: a load of a tile without a shape\n");
  tile.bytes = {};
  for (int64_t row = 0; row < tile.rows; ++row)
    std::memcpy(tile.bytes[static_cast<size_t>(row)].data(),
                reinterpret_cast<const uint8_t*>(address + row * stride),
                static_cast<size_t>(tile.row_bytes));
}

void store(const Tile& tile, int64_t address, int64_t stride) {
  if (tile.rows == 0) fail("tile machine: a store of a tile without a shape\n");
  for (int64_t row = 0; row < tile.rows; ++row)
    std::memcpy(reinterpret_cast<uint8_t*>(address + row * stride),
                tile.bytes[static_cast<size_t>(row)].data(), static_cast<size_t>(tile.row_bytes));
}

template <typename T>
T element(const Tile& tile, int row, int number) {
  T value;
  std::memcpy(&value,
              tile.bytes[static_cast<size_t>(row)].data() +
                  static_cast<size_t>(number) * sizeof value,
              sizeof value);
  return value;
}

// sum += a * b over the elements of words, with product(word of a, word of b, their elements'
// place).
template <typename Sum, typename A, typename B, typename Widen>
void multiply(Tile& sum, const Tile& a, const Tile& b, const Widen& widen) {
  if (sum.rows != a.rows || sum.row_bytes != b.row_bytes || 4 * b.rows != a.row_bytes)
    fail("tile machine: shapes of a product that do not fit\n");
  constexpr int kInWord = 4 / sizeof(A);
  for (int m = 0; m < sum.rows; ++m)
    for (int n = 0; n < sum.row_bytes / 4; ++n) {
      auto total = element<Sum>(sum, m, n);
      for (int k = 0; k < b.rows; ++k)
        for (int i = 0; i < kInWord; ++i)
          total +=
              widen(element<A>(a, m, kInWord * k + i)) * widen(element<B>(b, k, kInWord * n + i));
      std::memcpy(sum.bytes[static_cast<size_t>(m)].data() + static_cast<size_t>(n) * 4, &total, 4);
    }
  ++products;
}

float widen_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint32_t widen_byte(int value) { return static_cast<uint32_t>(value); }  // wraps

// False where it is none of AMX's.
bool carry_out(const Instruction& instruction) {
  const int key = instruction.opcode << 4 | instruction.prefix;
  Tile& tile = tiles[static_cast<size_t>(instruction.reg)];
  const Tile& a = tiles[static_cast<size_t>(instruction.rm)];
  const Tile& b = tiles[static_cast<size_t>(instruction.vvvv % kTiles)];
  switch (key) {
  case 0x490:
    if (instruction.mod == 3)
      tiles = {};
    else
      configure(instruction.address);
    return true;
  case 0x493: tile.bytes = {}; return true;
  case 0x4b1:
  case 0x4b3: load(tile, instruction.address, instruction.stride); return true;
  case 0x4b2: store(tile, instruction.address, instruction.stride); return true;
  case 0x5c2: multiply<float, uint16_t, uint16_t>(tile, a, b, widen_bf16); return true;
  case 0x5e0: multiply<uint32_t, uint8_t, uint8_t>(tile, a, b, widen_byte); return true;
  case 0x5e1: multiply<uint32_t, uint8_t, int8_t>(tile, a, b, widen_byte); return true;
  case 0x5e2: multiply<uint32_t, int8_t, uint8_t>(tile, a, b, widen_byte); return true;
  case 0x5e3: multiply<uint32_t, int8_t, int8_t>(tile, a, b, widen_byte); return true;
  default: return false;
  }
}

void handle(int, siginfo_t*, void* data) {
  auto& context = *static_cast<ucontext_t*>(data);
  const auto* code = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  if (code[0] == 0xc4 && (code[1] & 0x1f) == 2) {
    const Instruction instruction = decode(context, code);
    if (carry_out(instruction)) {
      context.uc_mcontext.gregs[REG_RIP] += instruction.length;
      return;
    }
  }
  signal(SIGILL, SIG_DFL);  // not ours: it happens again
}

}  // namespace

void install_tile_machine() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  MLCC_CHECK(sigaction(SIGILL, &action, nullptr) == 0, "sigaction");
}

int64_t count_tile_products() { return products; }

}  // namespace mlcc::codegen::cpu::testing
#endif
