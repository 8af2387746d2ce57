#!/bin/bash
# Installs a wheel as a user would, into a fresh environment outside of the source, and runs the conformance sample with
# it: one sample of each sixth op in five dtypes. PYTHON is what the wheel is for. usage: check_install.sh [WHEEL]
source "$(dirname "$0")/common.sh"
wheel=$(realpath "${1:-$(ls build/wheel/mlcc-*.whl)}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=$folder/env/bin/python
export MLCC_CACHE_DIR=$folder/cache
unset PYTHONPATH PYTHONHOME

say "installing $(basename "$wheel") into a fresh environment"
"${PYTHON:-python3}" -m venv "$folder/env"
pip() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }
pip ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "torch==$TORCH_VERSION"
pip "$wheel" numpy expecttest # the latter two are for the tests
# The tests go there without the package, so that what they import is the installed one.
cp -r tests "$folder"
cd "$folder"
"$python" -c 'import mlcc, sys; sys.exit(not mlcc.__file__.startswith(sys.prefix))' || die "another mlcc was imported"
"$python" -m mlcc doctor
say "running the conformance sample"
"$python" tests/conformance/run.py --every 6 --sample 1 >log 2>&1 || { cat log; die "the installed mlcc is not right"; }
sed -n '/^ops and dtypes:/,/^samples:/p; /^crashes/p' log
