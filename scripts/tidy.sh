#!/bin/bash
# clang-tidy on the C++ files that differ from a commit (default: main, else all). usage: tidy.sh [commit]
source "$(dirname "$0")/common.sh"
base=${1:-main}
dir=$ROOT/build/dev
[ -f "$dir/compile_commands.json" ] || cmake --preset dev "-DPython_EXECUTABLE=$VENV/bin/python" >/dev/null
cmake --build "$dir" --target mlcc_build_id >/dev/null
if git rev-parse --quiet --verify "$base^{commit}" >/dev/null; then
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } |
    grep -E '^(csrc|tools)/.*\.cpp$' | sort -u)
else
  mapfile -t files < <(find csrc tools -name '*.cpp' | sort)
fi
[ ${#files[@]} -gt 0 ] || { echo "tidy: no C++ file differs from $base"; exit 0; }
printf '%s\n' "${files[@]}" | xargs -P 2 -n 1 clang-tidy-19 --quiet -p "$dir" --warnings-as-errors='*'
