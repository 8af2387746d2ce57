// Runs the classifier of examples/packages/classifier.py on images of any number.
//
//   c++ -std=c++17 classify.cpp -lmlcc_runtime -o classify
//   ./classify classifier.mlcc image.f32
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mlcc_runtime.hpp>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return std::puts("usage: classify PACKAGE IMAGE"), 1;
  try {
    const mlcc_runtime::Package package(argv[1]);
    mlcc_runtime::Context context(package);
    const mlcc_tensor_info info = package.inputs().at(0);
    const std::vector<int64_t> sizes(info.sizes, info.sizes + info.rank);

    std::ifstream file(argv[2], std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<float> image(bytes.size() / sizeof(float));
    std::copy_n(bytes.data(), image.size() * sizeof(float), reinterpret_cast<char*>(image.data()));

    size_t count = 1;
    for (const int64_t size : sizes) count *= static_cast<size_t>(size);
    if (image.size() != count) return std::fprintf(stderr, "%s: no such image\n", argv[2]), 1;

    const mlcc_runtime::Tensor input = mlcc_runtime::tensor(image.data(), sizes);
    const std::vector<int64_t> score_sizes = context.infer({input}, 1)[0];
    std::vector<float> scores(static_cast<size_t>(score_sizes[0] * score_sizes[1]));
    context.run({input}, {mlcc_runtime::tensor(scores.data(), score_sizes)});
    const auto best = std::max_element(scores.begin(), scores.end());
    std::printf("class %td, score %.4f\n", best - scores.begin(), *best);
  } catch (const mlcc_runtime::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}
