# Sourced by the other scripts: the root as working folder, and a few words.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/.venv
BUILD=$ROOT/build/release
LLVM_BIN=/usr/lib/llvm-19/bin
TORCH_VERSION=2.13.0 # what we build against
WHEEL_GLIBC=2_34 # the oldest one that wheels are for; docs/install.md
# Objects are found in ccache by what they are made of, wherever the folder is (another clone, an unpacked sdist).
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
# Set but empty, this crashes `import torch` (2.13).
[ -n "${TORCH_LOGS-x}" ] || unset TORCH_LOGS

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# done_before NAME TEXT...: true if step NAME was stamped with this very text.
done_before() { [ "$(cat "$ROOT/.stamps/$1" 2>/dev/null)" = "${*:2}" ]; }
stamp() { mkdir -p "$ROOT/.stamps"; printf '%s\n' "${*:2}" >"$ROOT/.stamps/$1"; }
