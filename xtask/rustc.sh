#!/usr/bin/env bash
# The compiler of `cargo xtask ci` (RUSTC_WORKSPACE_WRAPPER): rustc, but in the profile `ci` (the only one with
# opt-level 2) it does not optimise test programs.
#
# Optimising code that runs for milliseconds would take a third of the time of a build of all tests. The libraries
# that test programs are linked with stay optimised; so do all test programs of these packages, which compute much.
set -euo pipefail
optimised=' extant-alloc extant-dir extant-fsmodel extant-lab extant-mapping extant-page-cache extant-rescue extant-volume '

if [[ " $* " == *' --test '* && "$optimised" != *" ${CARGO_PKG_NAME:-} "* ]]; then
    set -- "${@/#opt-level=2/opt-level=0}"
fi
exec "$@"
