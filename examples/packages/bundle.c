/* Runs a bundle: an object file that is linked into the program, without a runtime and without files.
 *
 *   mlcc.export(model, (image,), "classifier", format="bundle")
 *   cc bundle.c classifier.o -o classify
 *
 * The model takes one image and gives scores of its classes.
 */
#include <stdio.h>

#include "classifier.h"

enum { kMostPixels = 1 << 20, kMostClasses = 1000 };

static _Alignas(CLASSIFIER_ALIGNMENT) unsigned char arena[CLASSIFIER_ARENA_BYTES];
static _Alignas(CLASSIFIER_ALIGNMENT) float image[kMostPixels];
static _Alignas(CLASSIFIER_ALIGNMENT) float scores[kMostClasses];

int main(void) {
  for (int i = 0; i < kMostPixels; ++i) image[i] = 0.5f;
  for (int i = 0; i < kMostClasses; ++i) scores[i] = -1e30f;
  const classifier_inputs inputs = {image};
  const classifier_outputs outputs = {scores};
  const int status = classifier_run(&inputs, &outputs, arena);
  if (status != 0) {
    fprintf(stderr, "%s\n", classifier_error_text(status));
    return 1;
  }
  int best = 0;
  for (int i = 1; i < kMostClasses; ++i)
    if (scores[i] > scores[best]) best = i;
  printf("class %d\n", best);
  return 0;
}
