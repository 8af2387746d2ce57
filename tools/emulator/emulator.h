// Test controls of libmlcc_emulator.so, beside the C interfaces of the driver and of NVRTC. C, so
// that ctypes can call them.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// A kernel launch that was run, also one by a graph. Refused launches are not logged.
typedef struct {
  const char* function;  // valid until this thread reads a record again
  const char* schedule;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;  // dynamic
  int result;             // a CUresult
  int from_graph;
  const void* stream;
  unsigned long long switches;  // between threads of the kernel
} MlccEmulatorLaunch;

// What a launch read and wrote of a buffer: an allocation or a registered range. Of each byte
// `read` counts the largest number of times that one thread read it within one iteration (from one
// call of begin_iteration to the next), and `written` likewise: a row that is read three times
// counts three times, a bias that every row reads counts once. The totals count every access.
typedef struct {
  const void* begin;  // null: all that lies in no buffer, of which there are totals only
  unsigned long long size;
  unsigned long long read;
  unsigned long long written;
  unsigned long long read_total;
  unsigned long long written_total;
} MlccEmulatorBytes;

// Changes a setting; `name` is that of the variable MLCC_EMULATOR_<NAME>, in either case. 0: no
// such setting or not a value for it.
int mlcc_emulator_set(const char* name, const char* value);
// "forward", "reverse", "random", "skew-first", "skew-last" or "rotate".
int mlcc_emulator_set_schedule(const char* schedule);

// Why the last launch that failed did; "" if none has. Valid until this thread calls it again.
const char* mlcc_emulator_last_fault(void);

int mlcc_emulator_launch_count(void);
// 0: no launch of this index; the oldest has index 0.
int mlcc_emulator_launch(int index, MlccEmulatorLaunch* out);
void mlcc_emulator_clear_launches(void);

// Whether the following launches count bytes.
void mlcc_emulator_count_bytes(int enabled);
// 0: the launch touched nothing of the buffer that begins there (null: outside of buffers).
int mlcc_emulator_launch_bytes(int index, const void* begin, MlccEmulatorBytes* out);
void mlcc_emulator_register_range(const void* begin, unsigned long long size);
int mlcc_emulator_unregister_range(const void* begin);

// Memory that the following launches of this thread use, whoever allocated it; what the last call
// said is forgotten. Fresh memory, whose contents are undefined, is filled with poison now. Under
// the setting `strict` launches may touch this memory beside allocations and registered ranges.
typedef struct {
  const void* begin;
  unsigned long long size;
  int is_fresh;
} MlccEmulatorUse;
void mlcc_emulator_use(const MlccEmulatorUse* uses, int count);

// Bytes that are allocated and not freed.
unsigned long long mlcc_emulator_allocated_bytes(void);

// Makes the next `count` calls fail: kind is "allocations", "launches" or "loads", result a
// CUresult or 0 for the usual one of the kind. 0: no such kind.
int mlcc_emulator_fail_next(const char* kind, int count, int result);

#ifdef __cplusplus
}
#endif
