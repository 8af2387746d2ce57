#!/bin/bash
# Proves the GPU path on a machine with an NVIDIA GPU: builds, measures ceilings, tests on the device, benchmarks. docs/gpu.md.
# usage: gpu_check.sh [--out DIR] [--minutes N] [--quick] [--emulate] [--rewrite-model] [--only STEP,...]
# --emulate rehearses it without a GPU. Environment: PYTHON, a Python that has torch (default: .venv's, else python3).
source "$(dirname "$0")/common.sh"
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ ! -x "$VENV/bin/python" ] || PYTHON=$VENV/bin/python
fi
exec "$PYTHON" tools/gpu_check.py "$@"
