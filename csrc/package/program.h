// What runs: contents of a file whose code lies in memory.
#pragma once

#include <memory>
#include <vector>

#include "package/contents.h"
#include "package/ports.h"
#include "runtime/executable.h"

namespace mlcc::package {

// Immutable.
class Program {
 public:
  // `code`: where the section of code lies, which must outlive this. StatusError where the plan is
  // inconsistent.
  Program(Contents contents, const char* code);

  const runtime::Executable& executable() const { return *executable_; }
  const std::vector<Input>& inputs() const { return inputs_; }  // as the plan's
  const Ports& ports() const { return *ports_; }

 private:
  std::unique_ptr<const runtime::Executable> executable_;
  std::vector<Input> inputs_;
  std::unique_ptr<const Ports> ports_;
};

}  // namespace mlcc::package
