#!/usr/bin/env bash
# How fast is a FUSE mount? Side by side, in the same rounds, one JSON object on stdout, progress on stderr.
#
#   bench/mount.sh [KEY...]     KEY: read find (both if none is given)
#
#   read   one large file is read with 1 MiB reads, cold: ours, fuse2fs, and a null FUSE server that answers with zeros
#          over the same transport with the same options
#   find   `find -ls` over a generated tree, cold: ours, fuse2fs, and the kernel's ext4 from a loop mount
#
# Rates are medians of the rounds. A side that could not run is null. Needs root: cold means an empty page cache.
#
#   ROUNDS=5          rounds
#   SIZE_MB=2048      size of the file
#   FILES=1000000     files of the tree
#   LIMIT=1800        seconds after which one command is given up
#   WORK=/dev/shm     where the images go: in memory, so that no disk is measured
#   EXTANT=PATH, NULL_SERVER=PATH   the binaries; else they are built
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

rounds="${ROUNDS:-5}"
size_mb="${SIZE_MB:-2048}"
files="${FILES:-1000000}"
limit="${LIMIT:-1800}"
work=""
mount_point=""

cleanup() {
    local status=$?
    trap - EXIT
    release
    if [[ -n "$work" ]]; then
        rm -rf --one-file-system -- "$work" || true
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# release: nothing stays mounted.
release() {
    local attempt
    [[ -n "$mount_point" ]] || return 0
    for ((attempt = 0; attempt < 50; attempt++)); do
        mountpoint -q -- "$mount_point" || break
        umount -- "$mount_point" 2>/dev/null || sleep 0.1
    done
    if mountpoint -q -- "$mount_point"; then
        umount -l -- "$mount_point" || true
    fi
    # The servers hold the image until they have ended.
    if [[ -n "$server" ]]; then
        wait "$server" 2>/dev/null || true
        server=""
    fi
}
server=""

# --- Running one side ----------------------------------------------------------------------------------------------

# mounted SIDE: mounts that side's file system on mount_point.
mounted() {
    case "$1" in
    ours) "$extant" mount "$work/image" "$mount_point" ;;
    fuse2fs) fuse2fs "$work/image" "$mount_point" -o ro ;;
    kernel) mount -o loop,ro,noatime "$work/image" "$mount_point" ;;
    null)
        "$null_server" "$mount_point" $((size_mb << 20)) &
        server=$!
        local attempt
        for ((attempt = 0; attempt < 100; attempt++)); do
            mountpoint -q -- "$mount_point" && return
            sleep 0.1
        done
        return 1
        ;;
    esac
}

# rate SIDE AMOUNT COMMAND...: amount per second of a command over a fresh mount with an empty page cache, appended to
# the array SIDE_rate; a failure is printed and adds no number.
rate() {
    local -n into="$1_rate"
    local side="$1" amount="$2" start end
    shift 2
    if ! mounted "$side" >"$work/log" 2>&1; then
        say "    $side cannot be mounted: $(tail -n 1 -- "$work/log")"
        release
        return
    fi
    sync
    echo 3 >/proc/sys/vm/drop_caches
    start="${EPOCHREALTIME/./}"
    if (cd -- "$mount_point" && timeout "$limit" "$@") >"$work/log" 2>&1; then
        end="${EPOCHREALTIME/./}"
        into+=("$(awk -v us=$((end - start)) -v n="$amount" 'BEGIN { printf "%.1f", n * 1e6 / us }')")
        say "    $side ${into[-1]}/s"
    else
        say "    $side FAILED: $*"
        tail -n 5 -- "$work/log" >&2
    fi
    release
}

# enter_work: work becomes a fresh directory with a place to mount on.
enter_work() {
    work="$(mktemp -d -- "${WORK:-/dev/shm}/extant-bench.XXXXXX")"
    mount_point="$work/mnt"
    mkdir -- "$mount_point"
}

leave_work() {
    rm -rf --one-file-system -- "$work"
    work="" mount_point=""
}

# --- The keys ------------------------------------------------------------------------------------------------------

bench_read() {
    local round
    local -a ours_rate=() fuse2fs_rate=() null_rate=()
    say "read: $size_mb MiB with reads of 1 MiB"
    enter_work
    mkdir -- "$work/tree"
    head -c "${size_mb}M" /dev/urandom >"$work/tree/zeros"
    "$extant" build --no-sync -o "$work/image" --from "$work/tree" >/dev/null
    rm -r -- "$work/tree"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        for side in ours fuse2fs null; do
            rate "$side" "$size_mb" dd if=zeros of=/dev/null bs=1M
        done
    done
    leave_work
    local ours fuse2fs null
    ours="$(median "${ours_rate[@]}")" fuse2fs="$(median "${fuse2fs_rate[@]}")" null="$(median "${null_rate[@]}")"
    results+=("\"read\": {\"ours_mb_per_s\": $ours, \"fuse2fs_mb_per_s\": $fuse2fs, \"null_mb_per_s\": $null, \
\"ours_over_fuse2fs\": $(ratio "$ours" "$fuse2fs"), \"ours_over_null\": $(ratio "$ours" "$null"), \
\"mb\": $size_mb}")
}

bench_find() {
    local round
    local -a ours_rate=() fuse2fs_rate=() kernel_rate=()
    say "find: $files generated files"
    enter_work
    cargo xtask maketree "$work/tree" "$files"
    "$extant" build --no-sync -o "$work/image" --from "$work/tree" >/dev/null
    rm -r -- "$work/tree"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        for side in ours fuse2fs kernel; do
            rate "$side" "$files" find . -ls
        done
    done
    leave_work
    local ours fuse2fs kernel
    ours="$(median "${ours_rate[@]}")" fuse2fs="$(median "${fuse2fs_rate[@]}")"
    kernel="$(median "${kernel_rate[@]}")"
    results+=("\"find\": {\"ours_per_s\": $ours, \"fuse2fs_per_s\": $fuse2fs, \"kernel_per_s\": $kernel, \
\"ours_over_fuse2fs\": $(ratio "$ours" "$fuse2fs"), \"ours_over_kernel\": $(ratio "$ours" "$kernel"), \
\"files\": $files}")
}

# --- The run -------------------------------------------------------------------------------------------------------

if ((EUID != 0)); then
    say "bench/mount.sh needs root: only root can empty the page cache"
    exit 1
fi
need_packages fuse3 fuse2fs
extant="${EXTANT:-}"
null_server="${NULL_SERVER:-}"
target="${CARGO_TARGET_DIR:-target}"
if [[ -z "$extant" ]]; then
    need_rust
    cargo build --quiet --release --package extant-cli
    extant="$target/release/extant"
fi
if [[ -z "$null_server" ]]; then
    need_rust
    cargo build --quiet --release --package extant-fuse --example null_server
    null_server="$target/release/examples/null_server"
fi
extant="$(realpath -e -- "$extant")"
null_server="$(realpath -e -- "$null_server")"

results=()
(($# > 0)) || set -- read find
for key in "$@"; do
    case "$key" in
    read) bench_read ;;
    find) bench_find ;;
    *)
        say "unknown key: $key"
        exit 2
        ;;
    esac
done

printf '{'
printf '%s, ' "${results[@]}"
printf '"rounds": %d, "cpus": %d, "kernel": %s, "fuse2fs": %s, "commands": {' "$rounds" "$(nproc)" \
    "$(json_string "$(uname -r)")" "$(json_string "$(fuse2fs --version 2>&1 | awk 'NR == 1 { print $2 }')")"
printf '"ours": "extant mount IMG DIR", "fuse2fs": "fuse2fs IMG DIR -o ro", '
printf '"kernel": "mount -o loop,ro,noatime IMG DIR", "null": "null_server DIR SIZE", '
printf '"read": "dd if=FILE of=/dev/null bs=1M", "find": "find . -ls"}}\n'
