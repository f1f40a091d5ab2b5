#!/usr/bin/env bash
# Functions for the scripts of this repository that install what is missing. To be sourced.
set -euo pipefail

# Debian keeps e2fsprogs out of an ordinary user's PATH; rustup puts cargo into a directory of its own.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
export PATH

# say TEXT...: a line for the person, not for the pipe.
say() {
    printf '%s\n' "$*" >&2
}

# need_packages NAME...: installs the Debian packages among these that are missing.
need_packages() {
    local missing=() name
    if ! command -v dpkg-query >/dev/null; then
        say "note: not a Debian; these must be there: $*"
        return
    fi
    for name in "$@"; do
        if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)" != installed ]]; then
            missing+=("$name")
        fi
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    local as_root=()
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null; then
            say "note: missing packages, and neither root nor sudo to install them: ${missing[*]}"
            say "      (as root: apt-get install ${missing[*]})"
            return
        fi
        as_root=(sudo)
    fi
    say "installing: ${missing[*]}"
    # The output matters only when something goes wrong.
    local log
    log="$(mktemp)"
    # Asks for the password, if one is needed, before the output goes to the log.
    if ((EUID != 0)) && ! sudo apt-get --version >/dev/null; then
        say "cannot install (sudo refuses): ${missing[*]}"
        return 1
    fi
    if ! { "${as_root[@]}" apt-get -q update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get -q -y --no-install-recommends install "${missing[@]}"; } >"$log" 2>&1; then
        cat -- "$log" >&2
        rm -f -- "$log"
        say "cannot install: ${missing[*]}"
        return 1
    fi
    rm -f -- "$log"
}

# need_programs PROGRAM=PACKAGE...: stops where one of these is missing that nothing goes on without.
need_programs() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("$pair")
    done
    for pair in "${missing[@]}"; do
        say "${pair%%=*} is missing: install the package ${pair#*=}"
    done
    ((${#missing[@]} == 0))
}

# need_compiler: a C compiler with the C library's headers: parts of the dependencies are in C, and Rust links by it.
need_compiler() {
    need_programs cc=gcc
    if ! printf '#include <stdio.h>\n' | cc -E - >/dev/null 2>&1; then
        say "the C library's headers are missing: install the package libc6-dev"
        return 1
    fi
}

# need_fuse_device: /dev/fuse gets the mode that udev gives it; small machines have no udev.
need_fuse_device() {
    if ((EUID == 0)) && [[ -c /dev/fuse && "$(stat -c %a /dev/fuse)" != 666 ]]; then
        say "opening /dev/fuse for everybody, as udev does"
        chmod 666 /dev/fuse || say "note: /dev/fuse stays closed to ordinary users"
    fi
}

# need_mtab: fusermount3 reads /etc/mtab when it unmounts; a system made by debootstrap alone lacks it.
need_mtab() {
    local as_root=()
    if [[ -e /etc/mtab ]]; then
        return
    fi
    if ((EUID != 0)); then
        as_root=(sudo -n)
    fi
    say "linking /etc/mtab to /proc/self/mounts, as installers do"
    "${as_root[@]}" ln -s /proc/self/mounts /etc/mtab ||
        say "note: /etc/mtab is missing: ordinary users cannot unmount, and tests of that fail"
}

# need_rust: cargo must be there, and not be older than the code.
need_rust() {
    local wanted found
    wanted="$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)"
    if ! command -v cargo >/dev/null; then
        say "cargo is missing: install Rust $wanted or later, see https://rustup.rs"
        return 1
    fi
    found="$(cargo --version | cut -d ' ' -f 2)"
    if [[ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]]; then
        say "cargo $found is too old, Rust $wanted or later is needed: rustup update, or see https://rustup.rs"
        return 1
    fi
}

# need_rust_components NAME...: adds parts of the toolchain that a minimal installation lacks.
need_rust_components() {
    local name
    for name in "$@"; do
        if ! cargo "${name/rustfmt/fmt}" --version >/dev/null 2>&1; then
            say "adding Rust component: $name"
            rustup component add "$name" >&2
        fi
    done
}
