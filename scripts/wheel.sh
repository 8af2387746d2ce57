#!/bin/bash
# Builds the wheel as a user would and checks it (tools/check_wheel.py). usage: wheel.sh
source "$(dirname "$0")/common.sh"
# What an earlier build left would come along.
rm -rf build/wheel build/lib.* build/bdist.*
say "building the wheel"
"$VENV/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps -w build/wheel .
say "checking the wheel"
"$VENV/bin/python" tools/check_wheel.py build/wheel/mlcc-*.whl
