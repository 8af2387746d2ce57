// A package in memory, with a context.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "package/mlcc_runtime.h"

namespace mlcc::package {

// A file's bytes in memory, open while this lives.
class Opened {
 public:
  explicit Opened(const std::string& bytes, uint32_t flags = MLCC_CHECK_WEIGHTS)
      : memory_(static_cast<char*>(::aligned_alloc(4096, (bytes.size() / 4096 + 1) * 4096))) {
    std::memcpy(memory_, bytes.data(), bytes.size());
    status = mlcc_package_open_memory(memory_, bytes.size(), flags, &package, &error);
    if (status != MLCC_OK) return;
    EXPECT_EQ(mlcc_context_create(package, nullptr, &context, &error), MLCC_OK);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    mlcc_context_destroy(context);
    mlcc_package_close(package);
    ::free(memory_);
  }

  mlcc_status run(std::vector<mlcc_tensor> inputs, std::vector<mlcc_tensor>& outputs) {
    return mlcc_run(context, inputs.data(), inputs.size(), outputs.data(), outputs.size(), &error);
  }

  mlcc_status status;
  mlcc_error error{};
  mlcc_package* package = nullptr;
  mlcc_context* context = nullptr;

 private:
  char* memory_;
};

}  // namespace mlcc::package
