#!/bin/bash
# Builds the documentation into build/docs; warnings and dead links are errors. usage: docs.sh [mkdocs options]
# Its packages go to .venv-docs: they read docstrings, and need neither torch nor a build of mlcc.
source "$(dirname "$0")/common.sh"
PYTHON=${PYTHON:-python3}
DOCS_VENV=$ROOT/.venv-docs
packages="mkdocs~=1.6 mkdocs-material~=9.7 mkdocstrings[python]~=1.0"

if ! { [ -x "$DOCS_VENV/bin/mkdocs" ] && done_before docs "$DOCS_VENV $packages"; }; then
  say "creating .venv-docs"
  "$PYTHON" -m venv "$DOCS_VENV"
  IFS=' ' read -ra list <<<"$packages"
  "$DOCS_VENV/bin/python" -m pip --disable-pip-version-check install --quiet "${list[@]}"
  stamp docs "$DOCS_VENV $packages"
fi
say "building the documentation"
# Without --quiet, under which warnings are not counted. What mkdocs says is shown only when it fails.
output=$(NO_MKDOCS_2_WARNING=1 "$DOCS_VENV/bin/mkdocs" build --strict "$@" 2>&1) || { printf '%s\n' "$output"; die "docs"; }
echo "docs: ok ($ROOT/build/docs/index.html)"
