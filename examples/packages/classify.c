/* Runs a classifier that mlcc.export wrote, and prints its most likely classes.
 *
 *   python examples/packages/classifier.py            writes classifier.mlcc and image.f32
 *   cc classify.c -lmlcc_runtime -o classify
 *   ./classify classifier.mlcc image.f32
 */
#include <mlcc_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void stop(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static size_t count(const mlcc_tensor_info *info) {
  size_t elements = 1;
  for (int32_t d = 0; d < info->rank; ++d) elements *= (size_t)info->sizes[d];
  return elements;
}

int main(int argc, char **argv) {
  if (argc != 3) stop("usage", "classify PACKAGE IMAGE");
  mlcc_error error;
  mlcc_package *package;
  mlcc_context *context;
  if (mlcc_package_open(argv[1], 0, &package, &error) != MLCC_OK) stop(argv[1], error.text);
  if (mlcc_context_create(package, NULL, &context, &error) != MLCC_OK) stop(argv[1], error.text);

  mlcc_tensor_info in, out;
  mlcc_package_input(package, 0, &in);
  mlcc_package_output(package, 0, &out);
  float *image = malloc(count(&in) * sizeof(float));
  float *scores = malloc(count(&out) * sizeof(float));
  FILE *file = fopen(argv[2], "rb");
  if (file == NULL || fread(image, sizeof(float), count(&in), file) != count(&in)) stop(argv[2], "too short");
  fclose(file);

  mlcc_tensor input = {image, MLCC_F32, in.rank, in.sizes, NULL};
  mlcc_tensor output = {scores, MLCC_F32, out.rank, out.sizes, NULL};
  if (mlcc_run(context, &input, 1, &output, 1, &error) != MLCC_OK) stop("run", error.text);
  size_t best = 0;
  for (size_t i = 1; i < count(&out); ++i)
    if (scores[i] > scores[best]) best = i;
  printf("class %zu, score %.4f\n", best, scores[best]);

  free(image);
  free(scores);
  mlcc_context_destroy(context);
  mlcc_package_close(package);
  return 0;
}
