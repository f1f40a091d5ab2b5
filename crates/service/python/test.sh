#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into a fresh virtual environment, runs its tests there.
#
#   crates/service/python/test.sh [ARGUMENTS OF PYTEST...]
#
#   PROFILE=ci            profile of cargo; `release` to measure
#   CARGO_TARGET_DIR      where cargo builds; else target/ of the repository
#   KEEP=DIR              keep the environment in this directory, which must be empty or missing
set -euo pipefail

case "${1:-}" in
-h | --help)
    sed -n '2,8s/^# \{0,1\}//p' -- "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
venv=${KEEP:-$work/venv}

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check maturin pytest fsspec
"$venv/bin/maturin" build --quiet --profile "${PROFILE:-ci}" --manifest-path "$here/Cargo.toml" \
    --interpreter "$venv/bin/python" --out "$work/wheels" --locked
"$venv/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/*.whl
# From another directory, so that the installed package is tested and not the sources.
cd "$work"
"$venv/bin/python" -B -m pytest -q -p no:cacheprovider -c "$here/pyproject.toml" --rootdir "$work" \
    "$here/tests" "$@"
