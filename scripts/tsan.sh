#!/bin/bash
# The C++ tests of what threads share (runtime, packages, store, driver) under the thread sanitizer. usage: tsan.sh
source "$(dirname "$0")/common.sh"
cmake --preset tsan "-DPython_EXECUTABLE=$VENV/bin/python"
cmake --build --preset tsan --target runtime_tests package_tests driver_tests ${JOBS:+-j "$JOBS"}
for tests in runtime_tests package_tests driver_tests; do
  # Without address randomization: gcc 12's sanitizer refuses layouts of newer kernels.
  setarch "$(uname -m)" -R build/tsan/bin/$tests --gtest_brief=1
done
say "tsan: clean"
