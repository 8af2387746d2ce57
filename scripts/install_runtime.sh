#!/bin/bash
# Builds the C runtime of packages and installs it with what CMake and pkg-config need to find it. It needs a C++
# compiler, CMake, Ninja, xxhash.h and Python, but neither LLVM nor torch. usage: install_runtime.sh [PREFIX]
source "$(dirname "$0")/common.sh"
prefix=${1:-/usr/local}
mkdir -p build
exec {lock}>build/runtime.lock
flock $lock # tests that run at a time share the build
cmake -S . -B build/runtime -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" -DMLCC_WITH_LLVM=OFF \
  -DMLCC_WITH_PYTHON=OFF -DMLCC_WITH_TESTS=OFF -DMLCC_WERROR=OFF "-DCMAKE_INSTALL_PREFIX=$prefix" >/dev/null
cmake --build build/runtime --target mlcc_runtime_install ${JOBS:+-j "$JOBS"}
cmake --install build/runtime --component runtime --prefix "$prefix"
