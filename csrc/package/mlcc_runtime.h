/* The runtime of mlcc's packages: compiled programs in one file, run without Python, torch or a
 * compiler.
 *
 *   mlcc_error error;
 *   mlcc_package* package;
 *   mlcc_context* context;
 *   if (mlcc_package_open("model.mlcc", 0, &package, &error) != MLCC_OK) ...
 *   if (mlcc_context_create(package, NULL, &context, &error) != MLCC_OK) ...
 *   mlcc_tensor input = {pixels, MLCC_F32, 4, sizes, NULL};
 *   mlcc_tensor output = {scores, MLCC_F32, 2, output_sizes, NULL};
 *   if (mlcc_run(context, &input, 1, &output, 1, &error) != MLCC_OK) puts(error.text);
 *
 * Any number of threads use a package at a time. A context holds what one call needs, so each
 * thread that calls has one of its own. Nothing here reads environment variables, keeps global
 * state, ends the process or throws. A package holds code, which runs with the rights of the
 * process: open only files of those whom you would trust with a program.
 *
 * C11; C++ may include it too.
 */
#ifndef MLCC_RUNTIME_H
#define MLCC_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MLCC_API __attribute__((visibility("default")))
#else
#define MLCC_API
#endif

typedef enum mlcc_status {
  MLCC_OK = 0,
  MLCC_INVALID_ARGUMENT =
      1, /* what the caller gave: null, another dtype, size or stride, too little memory */
  MLCC_INVALID_FILE = 2, /* no package, a damaged one, or one that cannot be read or mapped */
  MLCC_UNSUPPORTED = 3,  /* of a newer version, or for a CPU that can more than this one */
  MLCC_CHECK_FAILED = 4, /* the program refuses its data, for example an index out of range */
  MLCC_OUT_OF_MEMORY = 5,
  MLCC_INTERNAL = 6 /* a bug of ours */
} mlcc_status;

/* What went wrong, in words: the argument, what was found, what was expected. */
typedef struct mlcc_error {
  mlcc_status status;
  char text[508]; /* ends with a zero */
} mlcc_error;

typedef enum mlcc_dtype {
  MLCC_BOOL = 0, /* a byte, 0 or 1 */
  MLCC_U8 = 1,
  MLCC_I8 = 2,
  MLCC_I16 = 3,
  MLCC_I32 = 4,
  MLCC_I64 = 5,
  MLCC_F16 = 6,
  MLCC_BF16 = 7,
  MLCC_F32 = 8,
  MLCC_F64 = 9
} mlcc_dtype;

/* Memory of the caller's, which must hold through the call. */
typedef struct mlcc_tensor {
  void* data; /* the first element, aligned to its size */
  mlcc_dtype dtype;
  int32_t rank; /* how many sizes and strides there are */
  const int64_t* sizes;
  const int64_t* strides; /* in elements; NULL: row-major without gaps */
} mlcc_tensor;

/* What a program takes or gives. The pointers live as long as the package. */
typedef struct mlcc_tensor_info {
  const char* name;
  mlcc_dtype dtype;
  int32_t rank;
  const int64_t* sizes;          /* -1: varies from call to call */
  const int64_t* strides;        /* in elements, of those for which nothing is copied; -1: varies */
  const char* const* size_texts; /* "3", "batch", "2*length + 1" */
} mlcc_tensor_info;

typedef struct mlcc_package mlcc_package;
typedef struct mlcc_context mlcc_context;

enum {
  MLCC_CHECK_WEIGHTS = 1, /* read all weights at once and compare their checksum */
  MLCC_COPY_WEIGHTS = 2   /* copy them into memory of large pages instead of mapping the file */
};

/* The version of this library: "1.0.0". */
MLCC_API const char* mlcc_runtime_version(void);

/* Opens a package. `flags`: of the enumeration above. The file is mapped: it must not change
 * meanwhile. One that is shorter when a call begins is an error of that call; one that becomes so
 * during a call may end the process. To replace a package, rename another file onto it. */
MLCC_API mlcc_status mlcc_package_open(const char* path, uint32_t flags, mlcc_package** package,
                                       mlcc_error* error);
/* The same of a file's bytes in memory, aligned to 64 bytes, which must hold as long as the package
 * is used. */
MLCC_API mlcc_status mlcc_package_open_memory(const void* bytes, size_t size, uint32_t flags,
                                              mlcc_package** package, mlcc_error* error);
/* Contexts of the package stay usable. NULL is allowed. */
MLCC_API void mlcc_package_close(mlcc_package* package);

/* The manifest, JSON in UTF-8; it does not end with a zero. */
MLCC_API const char* mlcc_package_manifest(const mlcc_package* package, size_t* size);

MLCC_API size_t mlcc_package_num_inputs(const mlcc_package* package);
MLCC_API size_t mlcc_package_num_outputs(const mlcc_package* package);
/* MLCC_INVALID_ARGUMENT where there is no such input or output. */
MLCC_API mlcc_status mlcc_package_input(const mlcc_package* package, size_t index,
                                        mlcc_tensor_info* info);
MLCC_API mlcc_status mlcc_package_output(const mlcc_package* package, size_t index,
                                         mlcc_tensor_info* info);
/* Bytes of the arena that a call with these inputs uses; their data may be NULL. */
MLCC_API mlcc_status mlcc_package_arena_bytes(const mlcc_package* package,
                                              const mlcc_tensor* inputs, size_t num_inputs,
                                              size_t* bytes, mlcc_error* error);

/* A weight by the name that the model's state_dict has for it. */
typedef struct mlcc_weight {
  const char* name;
  mlcc_tensor tensor;
} mlcc_weight;

/* How many weights can be exchanged. MLCC_UNSUPPORTED where the package was exported without
 * that. */
MLCC_API mlcc_status mlcc_package_num_weights(const mlcc_package* package, size_t* count,
                                              mlcc_error* error);
MLCC_API mlcc_status mlcc_package_weight(const mlcc_package* package, size_t index,
                                         mlcc_tensor_info* info, mlcc_error* error);
/* Exchanges weights, all of them or some, in memory of the package; the file is not touched. Calls
 * that begin afterwards see all of the new ones, calls under way see none: it may be called
 * meanwhile, from any thread. Names of the model's state_dict that no result depends on are
 * allowed. After an error nothing has changed. */
MLCC_API mlcc_status mlcc_package_refit(mlcc_package* package, const mlcc_weight* weights,
                                        size_t num_weights, mlcc_error* error);

/* Where a context has its memory from. */
typedef struct mlcc_allocator {
  void* (*allocate)(void* user, size_t bytes, size_t alignment); /* NULL where there is none */
  void (*release)(void* user, void* data, size_t bytes);
  void* user;
} mlcc_allocator;

/* Runs body(data, begin, end) for ranges that make up [0, count), each but the last at least
 * `grain` long, on any threads, and returns when all have ended. */
typedef void (*mlcc_parallel_for)(void* user, int64_t count, int64_t grain,
                                  void (*body)(void* data, int64_t begin, int64_t end), void* data);

/* Zeros and NULL stand for defaults. */
typedef struct mlcc_context_options {
  void* arena; /* at least mlcc_package_arena_bytes(), aligned to 64 bytes; NULL: from the allocator
                */
  size_t arena_bytes;
  mlcc_allocator allocator; /* NULL: the C++ library's */
  int32_t threads; /* that a call uses, the caller's among them, which sleep meanwhile; 0: one */
  mlcc_parallel_for parallel_for; /* threads of the caller's in place of these */
  void* parallel_user;
} mlcc_context_options;

/* `options` may be NULL. */
MLCC_API mlcc_status mlcc_context_create(const mlcc_package* package,
                                         const mlcc_context_options* options,
                                         mlcc_context** context, mlcc_error* error);
/* NULL is allowed. */
MLCC_API void mlcc_context_destroy(mlcc_context* context);

/* Runs the program. Inputs must have the dtypes, sizes and strides that mlcc_package_input() tells.
 *
 * An output whose `data` is NULL is filled in: data, sizes and strides then lie in memory of the
 * context (or of an input or weight that the program returns) and hold until the next call. With
 * `data` the result is put there: dtype and sizes must be those of mlcc_package_output(), strides
 * may be any that do not overlap. Outputs must not overlap inputs.
 *
 * After an error the outputs hold nothing of use, and the context can be used again. */
MLCC_API mlcc_status mlcc_run(mlcc_context* context, const mlcc_tensor* inputs, size_t num_inputs,
                              mlcc_tensor* outputs, size_t num_outputs, mlcc_error* error);

/* Fills in dtypes, sizes and strides of the outputs for inputs of these sizes, whose data may be
 * NULL. The numbers hold until the next call of the context. */
MLCC_API mlcc_status mlcc_infer(mlcc_context* context, const mlcc_tensor* inputs, size_t num_inputs,
                                mlcc_tensor* outputs, size_t num_outputs, mlcc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MLCC_RUNTIME_H */
