#!/bin/bash
# Runs the tests of a release build. usage: test.sh all|quick
# quick leaves out the tests marked slow. All parts run; the exit status tells whether one failed.
source "$(dirname "$0")/common.sh"
what=${1:-all}
failed=()
part() {
  say "$1"
  local start=$SECONDS
  "${@:2}" || failed+=("$1")
  echo "($1: $((SECONDS - start)) s)"
}

run_lit() { "$VENV/bin/lit" -s -v "--param=build=$BUILD" tests/lit; }
run_pytest() {
  local left_out="not nightly"
  [ "$what" = quick ] && left_out="not nightly and not slow"
  local options=(-q -n 2 --dist loadfile --durations=25 -m "$left_out")
  OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest "${options[@]}" tests/python tests/distributed
}

part ctest ctest --test-dir "$BUILD" --output-on-failure -j 2
part lit run_lit
part pytest run_pytest
part lint scripts/lint.sh
[ "$what" = quick ] || part docs scripts/docs.sh
[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
say "all tests passed"
