// What the emulator and a compiled program of CUDA text know of each other. Stands, with
// cuda_host.h, before every program's text: includes nothing and names nothing outside its
// namespace.
#pragma once

namespace mlcc_emulator {

// Changes with every change in this file; a program of another version is not loaded.
constexpr int kApiVersion = 1;
constexpr int kWarpSize = 32;
// What memory holds that nobody wrote, and what a shuffle gives from a lane that takes no part.
constexpr unsigned char kPoison = 0xCB;

struct Index3 {
  unsigned x, y, z;
};

enum class WarpOp : unsigned char { kSync, kShuffle, kBallot, kGather };
enum class BlockOp : unsigned char { kSync, kOr, kAnd, kCount };

// What a thread brings to a warp barrier. All lanes of one mask must bring the same op, width and
// bytes.
struct WarpRequest {
  WarpOp op;
  unsigned char width;
  unsigned short bytes;  // of the payload
  unsigned mask;
  int source;               // kShuffle: the lane whose payload is wanted
  unsigned predicate;       // kBallot: in this lane; then the lanes where it holds
  const void* payload;      // kShuffle, kGather
  unsigned char* gathered;  // kShuffle: `bytes`; kGather: kWarpSize * `bytes`
};

// A CUDA thread as its code sees it.
struct Thread {
  Index3 index;
  int lane;
  WarpRequest request;
};

// The emulator as a program sees it: the launch that runs now.
struct Api {
  Thread* current;
  Index3 block, block_size, grid_size;
  unsigned char* dynamic_shared;
  int watches_memory;      // whether `touch` and `begin_iteration` must be called
  void (*warp_barrier)();  // on current->request
  unsigned (*block_barrier)(BlockOp op, unsigned predicate);
  void (*touch)(const void* address, unsigned long bytes, bool is_store);
  void (*misaligned)(const void* address, unsigned long bytes, bool is_store);
  void (*begin_iteration)();
  void (*trap)(const char* why);  // does not return
};

// A __global__ function.
struct Entry {
  const char* name;
  void (*run)(void** parameters);
  const unsigned* parameter_bytes;
  unsigned parameter_count;
  unsigned max_threads;  // __launch_bounds__; 0: none
};

// The one thing that a program exports, as the function mlcc_emulator_program.
struct Program {
  int api_version;
  int arch;  // 90 for sm_90
  const Entry* entries;
  unsigned entry_count;
  unsigned char* shared_begin;  // all __shared__ variables
  unsigned char* shared_end;
  void (*attach)(Api* api);
};

}  // namespace mlcc_emulator
