/* Runs a package on raw bytes: run_package PACKAGE INPUTS OUTPUTS
 *
 * INPUTS holds the inputs' elements one behind the other, OUTPUTS gets those of the outputs. All sizes are fixed.
 */
#include <mlcc_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 64 };

static const size_t kElementBytes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};

static int stop(const char *what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

static mlcc_tensor tensor_of(const mlcc_tensor_info *info, size_t *bytes) {
  *bytes = kElementBytes[info->dtype];
  for (int32_t d = 0; d < info->rank; ++d) *bytes *= (size_t)info->sizes[d];
  mlcc_tensor tensor = {malloc(*bytes + 1), info->dtype, info->rank, info->sizes, NULL};
  return tensor;
}

int main(int argc, char **argv) {
  if (argc != 4) return stop("usage: run_package PACKAGE INPUTS OUTPUTS");
  mlcc_error error;
  mlcc_package *package;
  mlcc_context *context;
  if (mlcc_package_open(argv[1], MLCC_CHECK_WEIGHTS, &package, &error) != MLCC_OK) return stop(error.text);
  mlcc_context_options options;
  memset(&options, 0, sizeof(options));
  options.threads = 2;
  if (mlcc_context_create(package, &options, &context, &error) != MLCC_OK) return stop(error.text);
  const size_t num_inputs = mlcc_package_num_inputs(package);
  const size_t num_outputs = mlcc_package_num_outputs(package);
  if (num_inputs > kMost || num_outputs > kMost) return stop("too many tensors");

  mlcc_tensor_info info;
  mlcc_tensor inputs[kMost], outputs[kMost];
  size_t bytes, output_bytes[kMost];
  FILE *file = fopen(argv[2], "rb");
  if (file == NULL) return stop(argv[2]);
  for (size_t i = 0; i < num_inputs; ++i) {
    mlcc_package_input(package, i, &info);
    inputs[i] = tensor_of(&info, &bytes);
    if (fread(inputs[i].data, 1, bytes, file) != bytes) return stop("inputs end early");
  }
  fclose(file);
  for (size_t i = 0; i < num_outputs; ++i) {
    mlcc_package_output(package, i, &info);
    outputs[i] = tensor_of(&info, &output_bytes[i]);
  }
  if (mlcc_run(context, inputs, num_inputs, outputs, num_outputs, &error) != MLCC_OK) return stop(error.text);
  file = fopen(argv[3], "wb");
  if (file == NULL) return stop(argv[3]);
  for (size_t i = 0; i < num_outputs; ++i) fwrite(outputs[i].data, 1, output_bytes[i], file);
  fclose(file);
  for (size_t i = 0; i < num_inputs; ++i) free(inputs[i].data);
  for (size_t i = 0; i < num_outputs; ++i) free(outputs[i].data);
  mlcc_context_destroy(context);
  mlcc_package_close(package);
  return 0;
}
