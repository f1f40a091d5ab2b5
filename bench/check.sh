#!/usr/bin/env bash
# How fast are images read and checked? Side by side, in the same rounds, all in memory: `extant check` and `e2fsck -fn` over
# an image of many inodes; `extant export --tar` and the kernel's `tar cf -` over a fresh loop mount of the same image; `extant
# diff` and cmp over an image and its copy; `extant resize` and resize2fs, growing an empty
# image from 64 MiB to 15 TiB, and shrinking an image that the kernel has filled to its smallest size; opening a sparse image of 16 TiB and listing its root. One JSON object on stdout, progress on stderr.
#
#   bench/check.sh [KEY...]     KEY: check_million repair_million export_usr diff_copy resize_grow resize_min open_16tib (all
#                              if none is given; resize_min needs root)
#
# Seconds are medians of the rounds. A side that could not run is null. Ratios are the other side's time over ours.
#
#   ROUNDS=5          rounds
#   LIMIT=900         seconds after which one command is given up
#   WORK=/dev/shm     where images go (./out if there is too little space)
#   EXTANT=PATH       the binary; else it is built
#   FILES=1000000     how many files check_million and repair_million have
#   TREE=/usr         the tree of the images of export_usr, diff_copy and resize_min
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

rounds="${ROUNDS:-5}"
limit="${LIMIT:-900}"
files="${FILES:-1000000}"
tree="$(realpath -e -- "${TREE:-/usr}")"
work=""
mount_point=""

leave_work() {
    if [[ -n "$mount_point" ]] && mountpoint -q -- "$mount_point"; then
        umount -- "$mount_point" 2>/dev/null || umount -l -- "$mount_point" || true
    fi
    if [[ -n "$work" ]]; then
        rm -rf --one-file-system -- "$work" || true
    fi
    work="" mount_point=""
}

cleanup() {
    local status=$?
    trap - EXIT
    leave_work
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# --- Running one side ----------------------------------------------------------------------------------------------

# timed SIDE COMMAND...: runs it, appends its seconds to the array SIDE_s; a failure is printed and adds no number.
timed() {
    local -n into="$1_s"
    local side="$1" start end
    shift
    start="${EPOCHREALTIME/./}"
    if "$@" 2>"$work/log"; then
        end="${EPOCHREALTIME/./}"
        into+=("$(awk -v us=$((end - start)) 'BEGIN { printf "%.4f", us / 1e6 }')")
        say "    $side ${into[-1]} s"
    else
        say "    $side FAILED: $*"
        tail -n 5 -- "$work/log" >&2
    fi
}

# choose_work KIB: sets work to a fresh directory with that much space, in memory if possible.
choose_work() {
    local base available
    for base in "${WORK:-/dev/shm}" "$repository/out"; do
        mkdir -p -- "$base" || continue
        available="$(df --output=avail -k -- "$base" | tail -n 1)"
        if [[ "$(stat -f -c %T -- "$base")" == tmpfs ]]; then
            local free
            free="$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)"
            available=$((free < available ? free : available))
        fi
        if ((available > $1)); then
            work="$(mktemp -d -- "$base/extant-bench.XXXXXX")"
            mount_point="$work/mnt"
            mkdir -- "$mount_point"
            return
        fi
        say "note: less than $(($1 / 1048576 + 1)) GiB available in $base"
    done
    say "too little space"
    return 1
}

ours_check() {
    timeout "$limit" "$extant" check --quiet "$work/image" >"$work/out"
}

e2fsck_check() {
    timeout "$limit" e2fsck -fn "$work/image" >"$work/out"
}

ours_repair() {
    local code=0
    timeout "$limit" "$extant" check --repair -y --quiet --undo "$work/undo" "$work/image" >"$work/out" || code=$?
    ((code == 1))
}

e2fsck_repair() {
    local code=0
    timeout "$limit" e2fsck -fy "$work/image" >"$work/out" || code=$?
    ((code == 1))
}

ours_export() {
    timeout "$limit" "$extant" export "$work/image" --tar - | cat >/dev/null
}

kernel_export() {
    timeout "$limit" tar -C "$mount_point" -cf - . | cat >/dev/null
}

ours_diff() {
    timeout "$limit" "$extant" diff -q "$work/image" "$work/copy"
}

cmp_diff() {
    timeout "$limit" cmp "$work/image" "$work/copy"
}

# --- The figures ---------------------------------------------------------------------------------------------------

bench_check_million() {
    local -a ours_s=() e2fsck_s=()
    local round
    say "check_million: $files generated files"
    choose_work $((files * 12))
    cargo xtask maketree "$work/tree" "$files"
    "$extant" build -q --no-sync -o "$work/image" --from "$work/tree"
    rm -rf --one-file-system -- "$work/tree"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        timed ours ours_check
        timed e2fsck e2fsck_check
    done
    leave_work
    local ours e2fsck
    ours="$(median "${ours_s[@]}")" e2fsck="$(median "${e2fsck_s[@]}")"
    results+=("\"check_million\": {\"ours_s\": $ours, \"e2fsck_s\": $e2fsck, \"ratio\": $(ratio "$e2fsck" "$ours")}")
}

bench_repair_million() {
    local -a ours_s=() e2fsck_s=()
    local round
    say "repair_million: $files generated files, each with a wrong link count"
    choose_work $((files * 20))
    cargo xtask maketree "$work/tree" "$files"
    "$extant" build -q --no-sync -o "$work/sound" --from "$work/tree"
    rm -rf --one-file-system -- "$work/tree"
    cargo run --quiet --profile ci -p extant-repair --example wrong_counts -- "$work/sound" >&2
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        cp --sparse=always -- "$work/sound" "$work/image"
        rm -f -- "$work/undo"
        timed ours ours_repair
        cp --sparse=always -- "$work/sound" "$work/image"
        timed e2fsck e2fsck_repair
    done
    leave_work
    local ours e2fsck
    ours="$(median "${ours_s[@]}")" e2fsck="$(median "${e2fsck_s[@]}")"
    results+=("\"repair_million\": {\"ours_s\": $ours, \"e2fsck_s\": $e2fsck, \"ratio\": $(ratio "$e2fsck" "$ours")}")
}

bench_export_usr() {
    local -a ours_s=() kernel_s=()
    local round kib
    say "export_usr: $tree"
    kib="$(du -skx -- "$tree" 2>/dev/null | cut -f1)"
    # The image, and the kernel's cache of its mount.
    choose_work $((kib * 5 / 2))
    "$extant" build -q --no-sync -x -o "$work/image" --from "$tree"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        timed ours ours_export
        if ((EUID == 0)); then
            # A fresh mount has nothing in its cache; the image itself is in memory for both sides.
            mount -t ext4 -o loop,ro "$work/image" "$mount_point"
            timed kernel kernel_export
            umount -- "$mount_point"
        fi
    done
    leave_work
    local ours kernel
    ours="$(median "${ours_s[@]}")" kernel="$(median "${kernel_s[@]}")"
    results+=("\"export_usr\": {\"ours_s\": $ours, \"kernel_tar_s\": $kernel, \"ratio\": $(ratio "$kernel" "$ours")}")
}

bench_diff_copy() {
    local -a ours_s=() cmp_s=()
    local round kib
    say "diff_copy: $tree"
    kib="$(du -skx -- "$tree" 2>/dev/null | cut -f1)"
    choose_work $((kib * 5 / 2))
    "$extant" build -q --no-sync -x -o "$work/image" --from "$tree"
    cp --reflink=never -- "$work/image" "$work/copy"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        timed ours ours_diff
        timed cmp cmp_diff
    done
    leave_work
    local ours cmp
    ours="$(median "${ours_s[@]}")" cmp="$(median "${cmp_s[@]}")"
    results+=("\"diff_copy\": {\"ours_s\": $ours, \"cmp_s\": $cmp, \"ratio\": $(ratio "$cmp" "$ours")}")
}

ours_resize() {
    "$extant" resize -q "$work/image" "$1"
}

resize2fs_to() {
    resize2fs -f "$work/image" "$1" >/dev/null
}

bench_resize_grow() {
    local -a ours_s=() resize2fs_s=()
    local round
    say "resize_grow: 64 MiB to 15 TiB"
    choose_work 8388608
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        rm -f -- "$work/image"
        mke2fs -q -t ext4 -b 4096 -O ^resize_inode,meta_bg "$work/image" 64M
        timed ours ours_resize 15T
        rm -f -- "$work/image"
        mke2fs -q -t ext4 -b 4096 -O ^resize_inode,meta_bg "$work/image" 64M
        timed resize2fs resize2fs_to 15T
    done
    leave_work
    local ours theirs
    ours="$(median "${ours_s[@]}")" theirs="$(median "${resize2fs_s[@]}")"
    results+=("\"resize_grow\": {\"ours_s\": $ours, \"resize2fs_s\": $theirs, \"ratio\": $(ratio "$theirs" "$ours")}")
}

# written COMMAND...: runs it, and appends the bytes that it wrote with system calls to $work/written.
written() {
    python3 - "$work/written" "$@" <<'PYTHON'
import os, subprocess, sys

child = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
with open(f"/proc/{child.pid}/io") as counters:
    bytes_written = dict(line.split(": ") for line in counters)["wchar"].strip()
with open(sys.argv[1], "a") as out:
    print(bytes_written, file=out)
sys.exit(child.wait())
PYTHON
}

# Half of the names are removed again, every second one, so that the rest is in pieces all over the file system.
bench_resize_min() {
    local -a ours_s=() resize2fs_s=() ours_w=() resize2fs_w=() ours_b=() resize2fs_b=()
    local round kib side
    if ((EUID != 0)); then
        say "resize_min: skipped, not root"
        return
    fi
    say "resize_min: $tree"
    kib="$(du -skx -- "$tree" 2>/dev/null | cut -f1)"
    choose_work $((kib * 5 / 2))
    truncate -s "$((kib * 2))K" "$work/full"
    mke2fs -q -F -t ext4 -O orphan_file "$work/full"
    mount -t ext4 -o loop "$work/full" "$mount_point"
    cp -ax -- "$tree" "$mount_point/tree"
    find "$mount_point/tree" -type f | awk 'NR % 2' | tr '\n' '\0' | xargs -0 rm -f --
    umount -- "$mount_point"
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        for side in ours resize2fs; do
            cp --sparse=always -- "$work/full" "$work/image"
            : >"$work/written"
            case "$side" in
            ours) timed ours written "$extant" resize -q "$work/image" min ;;
            resize2fs) timed resize2fs written resize2fs -fM "$work/image" ;;
            esac
            local -n w="${side}_w" b="${side}_b"
            w+=("$(cat -- "$work/written")")
            b+=("$(stat -c %s -- "$work/image")")
            e2fsck -fn "$work/image" >"$work/log" 2>&1 || say "    e2fsck after $side: $(tail -n 3 -- "$work/log")"
            say "    $side wrote ${w[-1]} bytes; ${b[-1]} bytes are left"
        done
    done
    leave_work
    local ours theirs
    ours="$(median "${ours_s[@]}")" theirs="$(median "${resize2fs_s[@]}")"
    results+=("\"resize_min\": {\"ours_s\": $ours, \"resize2fs_s\": $theirs, \"ratio\": $(ratio "$theirs" "$ours"), \"ours_written\": $(median "${ours_w[@]}"), \"resize2fs_written\": $(median "${resize2fs_w[@]}"), \"ours_bytes\": $(median "${ours_b[@]}"), \"resize2fs_bytes\": $(median "${resize2fs_b[@]}")}")
}

bench_open_16tib() {
    local -a open_s=() rss=()
    local round ms
    say "open_16tib"
    choose_work 1048576
    "$extant" mkfs -q -s 16T "$work/image" >/dev/null
    for ((round = 1; round <= rounds; round++)); do
        timed open "$extant" ls "$work/image:/" >"$work/out"
        [[ "$(cat -- "$work/out")" == lost+found ]] || say "    ls printed something else than lost+found"
        if [[ -n "$gnu_time" ]]; then
            "$gnu_time" -q -f %M -o "$work/rss" "$extant" ls "$work/image:/" >/dev/null
            rss+=("$(awk 'END { printf "%.1f", $1 / 1024 }' "$work/rss")")
        fi
    done
    leave_work
    ms="$(median "${open_s[@]}")"
    [[ "$ms" == null ]] || ms="$(awk -v s="$ms" 'BEGIN { printf "%.2f", s * 1000 }')"
    results+=("\"open_16tib\": {\"ms\": $ms, \"rss_mb\": $(largest "${rss[@]}")}")
}

need_packages e2fsprogs time tar mount python3
gnu_time="$(type -P time || true)"
extant="${EXTANT:-}"
if [[ -z "$extant" ]]; then
    need_rust
    say "building extant ..."
    cargo build --quiet --release --package extant-cli --package xtask
    extant="${CARGO_TARGET_DIR:-target}/release/extant"
fi
extant="$(realpath -e -- "$extant")"
((EUID == 0)) || say "note: not root: without the kernel's side"

results=()
(($# > 0)) || set -- check_million repair_million export_usr diff_copy resize_grow resize_min open_16tib
for key in "$@"; do
    case "$key" in
    check_million | repair_million | export_usr | diff_copy | resize_grow | resize_min | open_16tib) "bench_$key" ;;
    *)
        say "unknown key: $key"
        exit 2
        ;;
    esac
done

printf '{'
printf '%s, ' "${results[@]}"
printf '"rounds": %d, "cpus": %d, "kernel": "%s", "e2fsck": "%s", "commands": {' "$rounds" "$(nproc)" \
    "$(uname -r)" "$(e2fsck -V 2>&1 | awk 'NR == 1 { print $2 }')"
printf '"check_million": ["extant check --quiet IMG", "e2fsck -fn IMG"], '
printf '"repair_million": ["extant check --repair -y -q --undo FILE IMG", "e2fsck -fy IMG"], '
printf '"diff_copy": ["extant diff -q IMG COPY", "cmp IMG COPY"], '
printf '"export_usr": ["extant export IMG --tar - | cat >/dev/null", "mount -o loop,ro IMG MNT; tar -C MNT -cf - . | cat >/dev/null"], '
printf '"resize_grow": ["extant resize IMG 15T", "resize2fs -f IMG 15T"], '
printf '"resize_min": ["extant resize IMG min", "resize2fs -fM IMG"], '
printf '"open_16tib": ["extant ls IMG:/"]}}\n'
