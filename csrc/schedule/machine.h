// What a schedule knows of the machine that code is made for.
#pragma once

#include <cstdint>
#include <string_view>

namespace mlcc::schedule {

struct Machine {
  int64_t vector_bits = 512;                 // of a CPU: AVX-512, 256 AVX2, 128 NEON, 0 none
  int64_t threads = 1;                       // that kernels of a CPU run on
  int64_t second_level_bytes = 1024 * 1024;  // of the cache that a core of a CPU has for itself
  // Whether instructions of a CPU multiply and add up pairs of bf16, pairs of i16, and fours of
  // bytes: these in one, or widened to pairs of i16.
  bool dots_bf16 = false;
  bool dots_shorts = false;
  bool dots_bytes = false;
  // Whether of these bytes it takes one as unsigned and the other as signed, twice as fast as
  // others take both as they are.
  bool mixes_signs = false;
  // Whether it multiplies f16 and adds up in f32, without a conversion of its own (NEON).
  bool multiplies_halves = false;
  // Whether libraries multiply f16 as fast as f32, where the CPU computes with it (AVX-512 FP16).
  bool has_library_of_halves = false;
  // Whether registers of 16 rows of 64 bytes (AMX) multiply words of bf16, and of bytes of any
  // sign.
  bool multiplies_tiles = false;
  // Kernels of a CPU that move at least so much write past its caches; 0: none do.
  int64_t streaming_bytes = 0;
  int64_t last_level_bytes = 0;  // of the cache that cores of a CPU share; 0: not known
  // Whether a CPU's tiles should load little: on cores that two threads share loads cost time that
  // multiplications would hide on a quiet one.
  bool has_scarce_loads = false;
  // Whether a CPU's 3x3 convolutions may be computed from transformed images and filters
  // (Winograd).
  bool transforms_images = false;
  // Whether weights may be packed in another dtype than their own.
  bool widens_weights = false;
  // Whether memory keeps pace with a CPU's kernel that computes little, page after page, unasked.
  bool prefetches_pages = false;
  // Of a CPU's first-level cache: what any CPU has, at least, and how far apart addresses lie that
  // meet in one of its sets.
  int64_t first_level_bytes = 32 * 1024;
  int64_t first_level_set_bytes = 4096;
  // Of a register of whole tiles (AMX): words of 4 bytes in a row, and rows.
  int64_t tile_register_words = 16;
  int64_t tile_register_rows = 16;

  // A GPU: the numbers of csrc/schedule/machines/<architecture>.def.
  bool is_gpu = false;
  int64_t multiprocessors = 0;
  int64_t threads_per_multiprocessor = 0;
  int64_t threads_per_block = 0;
  int64_t registers_per_multiprocessor = 0;
  int64_t shared_bytes_per_block = 0;
  int64_t launch_ns = 0;  // of a second launch, about, as published
  int64_t memory_gb_per_s = 0;
  int64_t memory_latency_ns = 0;
  // What each thread of a full machine must have under way to keep the memory busy (Little's law).
  int64_t bytes_in_flight_per_thread() const;

  // Iterations of a CPU's parallel loop that its threads share evenly, so many each; one thread
  // needs but one.
  int64_t parts(int64_t of_thread) const { return threads == 1 ? 1 : of_thread * threads; }
};

// Vector registers of a CPU that has vectors of so many bits.
int64_t vector_registers(int64_t vector_bits);

// The model of an architecture ("sm_90"), or of the nearest older one that has a file; the oldest
// where there is none.
Machine gpu_machine(std::string_view architecture);

}  // namespace mlcc::schedule
