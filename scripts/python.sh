#!/bin/bash
# Runs a script with the Python of .venv from the root of the source. usage: python.sh script [argument...]
source "$(dirname "$0")/common.sh"
[ -f "$1" ] || die "$1 does not exist"
exec "$VENV/bin/python" "$@"
