#!/bin/bash
# Formatters and linters. usage: lint.sh [--fix]; --fix formats in place and does nothing else.
source "$(dirname "$0")/common.sh"
bin=$VENV/bin
folders=()
for folder in csrc tools tests benchmarks examples mlcc; do [ -d $folder ] && folders+=($folder); done
mapfile -t cpp < <(find "${folders[@]}" \( -name '*.cpp' -o -name '*.h' \) | sort)

if [ "${1:-}" = --fix ]; then
  [ ${#cpp[@]} = 0 ] || clang-format-19 -i "${cpp[@]}"
  "$bin/ruff" check --quiet --fix . || true
  "$bin/ruff" format --quiet .
  exit
fi

failed=()
# What a check says is shown only when it fails.
check() {
  local output
  output=$("${@:2}" 2>&1) || { printf '%s\n' "$output"; failed+=("$1"); }
}
[ ${#cpp[@]} = 0 ] || check clang-format clang-format-19 --dry-run -Werror "${cpp[@]}"
check ruff "$bin/ruff" check --quiet .
check "ruff format" "$bin/ruff" format --quiet --check .
check mypy "$bin/mypy" --no-error-summary
check import-linter env PYTHONPATH=. "$bin/lint-imports" --no-logo
check layers "$bin/python" tools/check_layers.py
check mirror "$bin/python" tools/check_mirror.py
check sizes "$bin/python" tools/check_sizes.py
check comments "$bin/python" tools/check_comments.py
[ ${#failed[@]} = 0 ] || die "lint: ${failed[*]}"
echo "lint: ok"
