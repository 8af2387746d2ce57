# Each of these does all the set-up that it needs, on a fresh Debian 12+ or Ubuntu 24.04+ machine too, and
# repeats cheaply. Variables: PYTHON (default python3), TORCH_INDEX (an index with other builds of torch),
# TORCH=present (use the torch of PYTHON), JOBS (parallel compile jobs), N (programs of make fuzz),
# MODE (their kind: programs or states).

SHELL := /bin/bash
export PYTHON ?= python3
export TORCH TORCH_INDEX JOBS

.PHONY: help demo test check lint tidy format conformance models upstream fuzz caches nightly tsan coverage-table bench peers wheel install docs build clean

help:
	@echo "make demo         set up, build, and run real models against eager; PEERS=inductor adds a column"
	@echo "make test         set up, build, and run all tests and linters"
	@echo "make check        the quick part of make test, for between two edits"
	@echo "make lint         formatters and linters only"
	@echo "make tidy         clang-tidy on the C++ files that differ from main (BASE=<commit>)"
	@echo "make format       format C++ and Python in place"
	@echo "make conformance  torch's own operator tests through mlcc; resumable"
	@echo "make models       architectures of transformers through mlcc; resumable"
	@echo "make upstream     PyTorch's tests of Inductor through mlcc; FILE=<copy of test_torchinductor.py>; resumable"
	@echo "make coverage-table  docs/coverage.md from a full make conformance"
	@echo "make fuzz         N random programs (default 1000) through mlcc, or with MODE=states around states and views; resumable"
	@echo "make caches       disk caches under kills, damage, full disks and other versions, and their keys; resumable"
	@echo "make nightly      all of these long runs, cold and warm, with a page in build/nightly/; resumable"
	@echo "                  PARTS=fuzz,models,... SCALE=0.01 (a hundredth of the work) FILE=<of make upstream>"
	@echo "make bench        the memory-bound workloads beside eager and peers (docs/benchmarks.md); resumable"
	@echo "                  BENCH=matmul, contraction_models, attention or training_steps: what is promised of contractions"
	@echo "                  BENCH=packages: files beside those of ONNX Runtime, IREE and AOTInductor"
	@echo "                  BENCH=quantized, quantized_models or llm: weights of few bits"
	@echo "make peers        install the peers of make bench into .venv, but no torch"
	@echo "make tsan         C++ tests of runtime, packages, store and driver under the thread sanitizer"
	@echo "make wheel        build the wheel and check it"
	@echo "make install      the C runtime of packages, for CMake and pkg-config; PREFIX=/usr/local"
	@echo "make docs         build the documentation into build/docs; warnings and dead links are errors"
	@echo "make build        set up and build the package"
	@echo "make clean        delete what was built; the .venv stays"

demo: build
	@scripts/python.sh examples/demo.py $(if $(PEERS),--peers $(PEERS)) $(DEMO_ARGS)

build:
	@scripts/setup.sh demo
	@scripts/build.sh python_package

test:
	@scripts/setup.sh test
	@scripts/build.sh all
	@scripts/test.sh all

check:
	@scripts/setup.sh test
	@scripts/build.sh all
	@scripts/test.sh quick

lint:
	@scripts/setup.sh test
	@scripts/lint.sh

tidy:
	@scripts/setup.sh tidy
	@scripts/tidy.sh $(BASE)

format:
	@scripts/setup.sh test
	@scripts/lint.sh --fix

conformance:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/conformance/run.py $(CONFORMANCE_ARGS)

models:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/models/run.py $(MODELS_ARGS)

upstream:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/upstream/run.py $(FILE) $(UPSTREAM_ARGS)

coverage-table: conformance
	@scripts/python.sh tests/conformance/coverage.py

fuzz:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/fuzz/run.py $(if $(N),--programs $(N)) $(if $(MODE),--mode $(MODE)) $(FUZZ_ARGS)

caches:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/caches/run.py $(CACHES_ARGS)

nightly:
	@scripts/setup.sh test
	@scripts/build.sh python_package
	@scripts/python.sh tests/nightly.py $(if $(PARTS),--parts $(PARTS)) $(if $(SCALE),--scale $(SCALE)) \
		$(if $(FILE),--upstream $(FILE)) $(NIGHTLY_ARGS)

bench: build
	@scripts/build.sh machine_limits
	@scripts/python.sh benchmarks/$(or $(BENCH),suite).py $(if $(PEERS),--peers $(PEERS)) $(BENCH_ARGS)

peers: build
	@MLCC_PREBUILT=build/release .venv/bin/python -m pip install --no-build-isolation --editable '.[peers]'

tsan:
	@scripts/setup.sh test
	@scripts/tsan.sh

wheel:
	@scripts/setup.sh demo
	@scripts/wheel.sh

install:
	@scripts/install_runtime.sh $(PREFIX)

docs:
	@scripts/docs.sh

clean:
	rm -rf build .stamps mlcc/*.so mlcc/_build_info.py
