#!/bin/bash
# Builds a target of the release preset, links the libraries into mlcc/ and registers the package in .venv.
# usage: build.sh [target]
source "$(dirname "$0")/common.sh"
target=${1:-all}
python=$VENV/bin/python

if [ ! -f "$BUILD/build.ninja" ] || [ CMakePresets.json -nt "$BUILD/build.ninja" ]; then
  say "configuring"
  cmake --preset release "-DPython_EXECUTABLE=$python"
fi
say "building"
cmake --build --preset release --target "$target" ${JOBS:+-j "$JOBS"}
"$python" tools/link_build.py "$BUILD"

# The entry points live in the environment; the code is found in this folder.
facts=$(sha256sum setup.py pyproject.toml mlcc/_version.py | sha256sum)
if ! done_before editable "$facts" || ! "$python" -c 'import importlib.metadata as m; m.version("mlcc")' 2>/dev/null; then
  say "registering mlcc in .venv"
  MLCC_PREBUILT=$BUILD "$python" -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps --editable .
  stamp editable "$facts"
fi
