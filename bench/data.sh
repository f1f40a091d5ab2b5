#!/usr/bin/env bash
# How fast do files' bytes go into memory and out of it? Side by side, in the same rounds; one JSON object on a line for each
# case, size and path on stdout, progress on stderr.
#
#   bench/data.sh [CASE...]   CASE: hole_read cached_read device_read cached_write overwrite writeback_write
#                             sync_write sync_overwrite (all if none is given)
#
#   {"case", "bs", "path", "mib_s", "kernel_mib_s", "limit_mib_s"}
#
# mib_s         the engine in process, on a device in memory: checksums, journal, barriers, threads, all as by default;
#               path iomap (ranges, large folios) or per-block (pages, ordered data)
# kernel_mib_s  the system's ext4 with the same features, mounted from a loop device in memory; the same loop, system calls; null
#               without root
# limit_mib_s   memset for hole_read, memcpy for the others; null for sync_write and sync_overwrite
#
# Medians of the rounds.
#
#   ROUNDS=5          rounds
#   BYTES=256M        the file
#   SIZES=4K,64K,1M   bytes of a read or write
#   WARM_MB=N         memory that is touched before the measurement: what a hypervisor took back from a machine comes at a price that
#                     has nothing to do with file systems (0: none; else 60 % of what is free)
#   SETTLE=4          seconds that pass before that, in which a machine gives back what was freed before
#   WORK=/dev/shm     where the kernel's image goes: in memory, so that no disk is measured
#   EXTANT=PATH       the binary; else it is built
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

work=""
mount_point=""

cleanup() {
    local status=$?
    trap - EXIT
    if [[ -n "$mount_point" ]] && mountpoint -q -- "$mount_point"; then
        umount -- "$mount_point" 2>/dev/null || umount -l -- "$mount_point" || true
    fi
    if [[ -n "$work" ]]; then
        rm -rf --one-file-system -- "$work" || true
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

features="metadata_csum,metadata_csum_seed,64bit,orphan_file"
need_packages e2fsprogs mount
extant="${EXTANT:-}"
if [[ -z "$extant" ]]; then
    need_rust
    cargo build --release -q -p extant-cli
    extant="${CARGO_TARGET_DIR:-target}/release/extant"
fi

work="$(mktemp -d -- "${WORK:-/dev/shm}/extant-data.XXXXXX")"
arguments=(--json --rounds "${ROUNDS:-5}" --bytes "${BYTES:-256M}" --sizes "${SIZES:-4K,64K,1M}" --features "$features")
if (($# > 0)); then
    arguments+=(--cases "$(IFS=,; printf '%s' "$*")")
fi
if ((EUID == 0)); then
    mount_point="$work/mnt"
    mkdir -- "$mount_point"
    truncate -s 2G -- "$work/image"
    mke2fs -q -F -t ext4 -O "$features" -J size=128 \
        -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$work/image" >/dev/null
    mount -t ext4 -o loop,noatime "$work/image" "$mount_point"
    arguments+=(--kernel "$mount_point")
else
    printf 'data.sh: not root: the kernel is left out\n' >&2
fi
warm
"$extant" lab buffered "${arguments[@]}"
