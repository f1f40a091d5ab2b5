#!/usr/bin/env bash
# How fast are images built? Side by side, in the same rounds: extant, `mke2fs -d`, the kernel (mkfs, loop mount, cp -a,
# umount), and `tar cf - DIR | cat`, which is what reading the tree costs. One JSON object on stdout, progress on stderr.
#
#   bench/build.sh [KEY...]     KEY: usr_share usr million_files from_tar (all if none is given), or NAME=DIR
#
# Seconds are medians of the rounds; rss_mb is the largest peak of extant. A side that could not run is null.
#
#   ROUNDS=3          rounds
#   SKIP_MKE2FS=1     leave out mke2fs -d, which needs minutes for /usr
#   LIMIT=1800        seconds after which one command is given up
#   WORK=/dev/shm     where outputs go (./out if there is too little space)
#   EXTANT=PATH       the binary; else it is built
#   FILES=1000000     how many files million_files has
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

rounds="${ROUNDS:-3}"
limit="${LIMIT:-1800}"
files="${FILES:-1000000}"
features="orphan_file,metadata_csum_seed"
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

# --- Running one side ----------------------------------------------------------------------------------------------

# timed SIDE COMMAND...: runs it, appends its seconds to the array SIDE_s; a failure is printed and adds no number.
timed() {
    local -n into="$1_s"
    local side="$1" start end
    shift
    start="${EPOCHREALTIME/./}"
    if "$@" >"$work/log" 2>&1; then
        end="${EPOCHREALTIME/./}"
        into+=("$(awk -v us=$((end - start)) 'BEGIN { printf "%.3f", us / 1e6 }')")
        say "    $side ${into[-1]} s"
    else
        say "    $side FAILED: $*"
        tail -n 5 -- "$work/log" >&2
    fi
}

# ours ARGS...: one run of extant; appends its peak memory to ours_rss.
ours() {
    rm -f -- "$work/ours.img"
    rm -f -- "$work/rss"
    if [[ -n "$gnu_time" ]]; then
        timed ours "$gnu_time" -q -f %M -o "$work/rss" timeout "$limit" "$extant" build -o "$work/ours.img" "$@"
    else
        timed ours timeout "$limit" "$extant" build -o "$work/ours.img" "$@"
    fi
    if [[ -s "$work/rss" ]]; then
        ours_rss+=("$(awk 'END { printf "%.1f", $1 / 1024 }' "$work/rss")")
    fi
}

# judge: e2fsck over the last image of extant, outside of the time. A fast wrong image is no result.
judge() {
    if [[ -e "$work/ours.img" ]] && ! e2fsck -fn "$work/ours.img" >"$work/log" 2>&1; then
        say "    e2fsck is NOT content with the image of extant:"
        tail -n 20 -- "$work/log" >&2
        fsck_clean=false
    fi
    rm -f -- "$work/ours.img"
}

mke2fs_side() {
    timeout "$limit" mke2fs -q -F -t ext4 -O "$features" -d "$1" "$work/mke2fs.img" "$2"
}

kernel_side() {
    mkfs.ext4 -q -F -O "$features" "$work/kernel.img"
    mount -o loop "$work/kernel.img" "$mount_point"
    local status=0
    timeout "$limit" cp -a -- "$1/." "$mount_point/" || status=$?
    umount -- "$mount_point"
    return "$status"
}

tar_side() {
    (cd / && timeout "$limit" tar cf - "${1#/}" | cat >/dev/null)
}

# --- The trees -----------------------------------------------------------------------------------------------------

# measure DIR: sets tree_files, tree_mb, and tree_kib: a size (KiB) at which an ext4 of mke2fs's defaults holds it, with
# one inode per 16 KiB, inode tables, journal.
measure() {
    local sums
    sums="$({ find "$1" -printf '%y %s\n' 2>/dev/null || true; } | awk '
        { bytes += $1 == "f" ? $2 : 0; kib += $1 == "f" || $1 == "d" ? int(($2 + 4095) / 4096) * 4 : 1 }
        END {
            room = kib * 1.1 + 262144; inodes = NR * 16 * 1.1
            printf "%d %.0f %d\n", NR, bytes / 1e6, (room > inodes ? room : inodes)
        }')"
    read -r tree_files tree_mb tree_kib <<<"$sums"
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

leave_work() {
    rm -rf --one-file-system -- "$work"
    work="" mount_point=""
}

# bench_tree KEY DIR
bench_tree() {
    local dir fsck_clean=true round
    local -a ours_s=() mke2fs_s=() kernel_s=() tar_s=() ours_rss=()
    dir="$(realpath -e -- "$2")"
    measure "$dir"
    say "$1: $dir, $tree_files files, $tree_mb MB"
    choose_work "$tree_kib"
    say "    (reading it once)"
    tar_side "$dir" 2>/dev/null || true
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        ours --from "$dir"
        judge
        timed tar tar_side "$dir"
        if ((EUID == 0)); then
            truncate -s "${tree_kib}K" -- "$work/kernel.img"
            timed kernel kernel_side "$dir"
            if mountpoint -q -- "$mount_point"; then umount -- "$mount_point"; fi
            rm -f -- "$work/kernel.img"
        fi
        if [[ "${SKIP_MKE2FS:-0}" != 1 ]]; then
            truncate -s "${tree_kib}K" -- "$work/mke2fs.img"
            timed mke2fs mke2fs_side "$dir" "${tree_kib}k"
            rm -f -- "$work/mke2fs.img"
        fi
    done
    leave_work
    local ours mke2fs kernel tar
    ours="$(median "${ours_s[@]}")" mke2fs="$(median "${mke2fs_s[@]}")"
    kernel="$(median "${kernel_s[@]}")" tar="$(median "${tar_s[@]}")"
    results+=("\"$1\": {\"ours_s\": $ours, \"mke2fs_s\": $mke2fs, \"kernel_s\": $kernel, \"tar_s\": $tar, \
\"rss_mb\": $(largest "${ours_rss[@]}"), \"mke2fs_over_ours\": $(ratio "$mke2fs" "$ours"), \
\"kernel_over_ours\": $(ratio "$kernel" "$ours"), \"ours_over_tar\": $(ratio "$ours" "$tar"), \
\"files\": $tree_files, \"mb\": $tree_mb, \"fsck_clean\": $fsck_clean}")
}

# bench_million: a generated tree, for the peak of memory.
bench_million() {
    local fsck_clean=true round
    local -a ours_s=() tar_s=() ours_rss=()
    say "million_files: $files generated files"
    # One page per file for the tree, one block per file for the image, and the inodes of both.
    choose_work $((files * 12))
    cargo xtask maketree "$work/tree" "$files"
    tar_side "$work/tree" 2>/dev/null || true
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        ours --from "$work/tree"
        judge
        timed tar tar_side "$work/tree"
    done
    leave_work
    local ours tar
    ours="$(median "${ours_s[@]}")" tar="$(median "${tar_s[@]}")"
    results+=("\"million_files\": {\"ours_s\": $ours, \"rss_mb\": $(largest "${ours_rss[@]}"), \"tar_s\": $tar, \
\"ours_over_tar\": $(ratio "$ours" "$tar"), \"files\": $files, \"fsck_clean\": $fsck_clean}")
}

# bench_from_tar DIR: from a tar of DIR, against the converter of Microsoft's hcsshim.
bench_from_tar() {
    local fsck_clean=true round theirs=""
    local -a ours_s=() tar2ext4_s=() ours_rss=()
    measure "$1"
    say "from_tar: a tar of $1, $tree_files files, $tree_mb MB"
    choose_work $((tree_kib * 2))
    if ! command -v go >/dev/null; then
        say "    go is missing: without tar2ext4"
    elif ! (cd bench/tar2ext4 && GOFLAGS=-mod=readonly go build -o "$work/tar2ext4" .) >"$work/log" 2>&1; then
        say "    tar2ext4 cannot be built: $(tail -n 1 -- "$work/log")"
    else
        theirs="$work/tar2ext4"
    fi
    # Also warms the cache: the tar lies next to the outputs.
    tar -C "$1" --format=posix -cf "$work/x.tar" .
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        ours --tar "$work/x.tar"
        judge
        if [[ -n "$theirs" ]]; then
            timed tar2ext4 timeout "$limit" "$theirs" "$work/x.tar" "$work/theirs.img"
            rm -f -- "$work/theirs.img"
        fi
    done
    leave_work
    local ours other
    ours="$(median "${ours_s[@]}")" other="$(median "${tar2ext4_s[@]}")"
    results+=("\"from_tar\": {\"ours_s\": $ours, \"tar2ext4_s\": $other, \"rss_mb\": $(largest "${ours_rss[@]}"), \
\"tar2ext4_over_ours\": $(ratio "$other" "$ours"), \"files\": $tree_files, \"mb\": $tree_mb, \
\"fsck_clean\": $fsck_clean}")
}

# --- Everything ----------------------------------------------------------------------------------------------------

need_packages e2fsprogs time
gnu_time="$(type -P time || true)"
extant="${EXTANT:-}"
if [[ -z "$extant" ]]; then
    need_rust
    say "building extant ..."
    cargo build --quiet --release --package extant-cli --package xtask
    extant="${CARGO_TARGET_DIR:-target}/release/extant"
fi
extant="$(realpath -e -- "$extant")"
((EUID == 0)) || say "note: not root: without the kernel's side, and without what only root can read"

results=()
(($# > 0)) || set -- usr_share usr million_files from_tar
for key in "$@"; do
    case "$key" in
    usr_share) bench_tree usr_share /usr/share ;;
    usr) bench_tree usr /usr ;;
    million_files) bench_million ;;
    from_tar) bench_from_tar /usr/share ;;
    *=*) bench_tree "${key%%=*}" "${key#*=}" ;;
    *)
        say "unknown key: $key"
        exit 2
        ;;
    esac
done

printf '{'
printf '%s, ' "${results[@]}"
printf '"rounds": %d, "cpus": %d, "kernel": %s, "mke2fs": %s, "commands": {' "$rounds" "$(nproc)" \
    "$(json_string "$(uname -r)")" "$(json_string "$(mke2fs -V 2>&1 | awk 'NR == 1 { print $2 }')")"
printf '"ours": "extant build -o IMG --from DIR", '
printf '"mke2fs": "mke2fs -q -F -t ext4 -O %s -d DIR IMG SIZE", ' "$features"
printf '"kernel": "mkfs.ext4 -q -F -O %s IMG; mount -o loop IMG MNT; cp -a DIR/. MNT/; umount MNT", ' "$features"
printf '"tar": "tar cf - DIR | cat >/dev/null", "tar2ext4": "tar2ext4.Convert(X.tar, IMG)"}}\n'
