#!/usr/bin/env bash
# How fast are names and inodes made and removed? Side by side, in the same rounds, one JSON object on stdout, progress
# on stderr.
#
#   bench/metadata.sh [KEY...]  KEY: mknod unlink link mkdir rmdir truncate two_threads (all if none is given)
#
# ours    the engine in process, on a device in memory: checksums, journal, barriers, committer, all as by default
# kernel  the system's ext4 with the same features, mounted from a loop device in memory; the same loop through system calls
#
# Rates are medians of the rounds, in operations per second. *_cpu is the rate per second of the worker's CPU time, which is
# steadier on a busy machine; commits run in threads of their own and count on neither side. A side that could not run is null.
# two_threads: mknod by two workers, each in its own directory; its ratio is extant's rate to the kernel's. `scaling` compares two
# workers of extant with one: short turns of each in one process, and the median of the ratios of neighbours (see docs/lab.md).
# `apart_scaling` is that of two workers on two file systems: the machine's limit. `kernel_scaling` is the kernel's. The kernel's side
# needs root.
#
#   ROUNDS=5          rounds
#   NAMES=1000000     names of mknod, unlink and link
#   TURNS=15          turns of one and of two workers in a round of two_threads, of a tenth of a second each; the kernel has a third of
#                     them, of a second each, since it commits less often
#   DIRS=200000       directories
#   LOOPS=50          loops of truncate, 4096 operations each
#   CACHE=4G          memory for extant's caches; the kernel's have no limit
#   LIMIT=600         seconds after which a command is killed
#   TRIES=3           runs of a measurement at most: it is repeated, on both sides, if the hypervisor stole more than 5 % of a
#                     CPU's time
#   WARM_MB=4096      memory that is touched before each measurement, on both sides, so that page faults to the hypervisor
#                     are not measured (0: none)
#   SETTLE=4          seconds before that, in which the machine returns freed memory
#   WORK=/dev/shm     where the kernel's image goes: in memory, so that no disk is measured
#   EXTANT=PATH       the binary; else it is built
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

rounds="${ROUNDS:-5}"
names="${NAMES:-1000000}"
dirs="${DIRS:-200000}"
loops="${LOOPS:-50}"
turns="${TURNS:-15}"
cache="${CACHE:-4G}"
limit="${LIMIT:-600}"
tries="${TRIES:-3}"
work=""
mount_point=""
# What mke2fs -t ext4 makes today, spelled out so that both sides have it whatever the versions are.
features="metadata_csum,metadata_csum_seed,64bit,orphan_file,large_dir"

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
    if [[ -n "$mount_point" ]] && mountpoint -q -- "$mount_point"; then
        umount -- "$mount_point" 2>/dev/null || umount -l -- "$mount_point" || true
    fi
}

# --- Running one side ----------------------------------------------------------------------------------------------

# fresh MIB INODES: a new file system of the kernel's, mounted.
fresh() {
    release
    rm -f -- "$work/image"
    truncate -s "$1M" -- "$work/image"
    mke2fs -q -F -t ext4 -O "$features" -N "$2" -J size=128 \
        -E lazy_itable_init=1,lazy_journal_init=1,nodiscard "$work/image" >/dev/null
    # Without its thread that zeroes inode tables: it would take time from what is measured.
    mount -t ext4 -o loop,noinit_itable,noatime "$work/image" "$mount_point"
}

# side WHICH MIB INODES WORDS...: runs createmany on one side; its JSON goes to stdout.
side() {
    local which="$1" mib="$2" inodes="$3"
    shift 3
    if [[ "$which" == ours ]]; then
        local at=(--image "mem:${mib}M")
        # Those are several file systems, as large as they need to be.
        [[ " $* " != *" --apart "* ]] || at=()
        undisturbed true timeout "$limit" "$extant" lab createmany --json "${at[@]}" --inodes "$inodes" \
            --journal-size 128 --features "$features" --cache "$cache" "$@"
    else
        undisturbed "fresh $mib $inodes" timeout "$limit" "$extant" lab createmany --json --kernel "$mount_point" "$@"
    fi
}

# undisturbed PREPARE COMMAND...: prints the output of the first of TRIES runs in which less than 5 % of a CPU's time was stolen, or of
# the last run.
undisturbed() {
    local prepare="$1" output stolen start try
    shift
    for ((try = 1; ; try++)); do
        $prepare >"$work/log" 2>&1 || return 1
        warm 4096
        stolen="$(stolen_since 0)" start="$(date +%s%N)"
        output="$("$@" 2>"$work/log")" || return 1
        stolen="$(stolen_since "$stolen")"
        release
        if ((try >= tries || stolen * 20 * 10000000 < $(date +%s%N) - start)); then
            printf '%s\n' "$output"
            return 0
        fi
        say "    (again: others took $stolen hundredths of a second of the processors)"
    done
}

# number FILTER JSON: null when it is not there.
number() {
    jq -r "$1 // \"null\"" <<<"$2"
}

# note KEY SIDE RATE CPU_RATE: keeps one round's numbers.
note() {
    local -n rates="rate_$1_$2" cpu="cpu_$1_$2"
    [[ "$3" == null ]] || rates+=("$3")
    [[ "$4" == null ]] || cpu+=("$4")
    say "    $1 $2: $(printf '%.0f' "${3/null/0}")/s"
}

# wanted KEY
wanted() {
    [[ " ${keys[*]} " == *" $1 "* ]]
}

# pass KEY SIDE PART JSON: notes the rates of a part (made, removal) of a report.
pass() {
    local part=.
    [[ "$3" == made ]] || part=".$3"
    note "$1" "$2" "$(number "($part | .per_s)" "$4")" "$(number "($part | if .cpu_s > 0 then .done / .cpu_s else null end)" "$4")"
}

# round SIDE: one round of everything on one side.
round() {
    local which="$1" json
    if wanted mknod || wanted unlink; then
        if json="$(side "$which" $((names / 1000 + 1024)) $((names + 65536)) --then-unlink -m test "$names")"; then
            pass mknod "$which" made "$json"
            pass unlink "$which" removal "$json"
        else
            failed "$which mknod"
        fi
    fi
    if wanted link; then
        if json="$(side "$which" $((names / 8000 + 1024)) 65536 --renew-target -l target test "$names")"; then
            pass link "$which" made "$json"
        else
            failed "$which link"
        fi
    fi
    if wanted mkdir || wanted rmdir; then
        if json="$(side "$which" $((dirs / 180 + 1024)) $((dirs + 65536)) --then-unlink -d test "$dirs")"; then
            pass mkdir "$which" made "$json"
            pass rmdir "$which" removal "$json"
        else
            failed "$which mkdir"
        fi
    fi
    if wanted two_threads; then
        local words=(--runs "$turns" --apart -m -t 0.1 test) size=0 inodes=$((turns * 600000))
        [[ "$which" == ours ]] || words=(--runs $(((turns + 2) / 3)) -m -t 1 test) size=$((turns * 300)) inodes=$((turns * 200000))
        if json="$(side "$which" "$size" "$inodes" --widths 1,2 "${words[@]}")"; then
            note two_threads "$which" "$(number '.rows[1].per_s.median' "$json")" "$(number '.rows[1].per_cpu_s.median' "$json")"
            local -n scalings="scaling_$which"
            scalings+=("$(number '.rows[1].scaling' "$json")")
            say "    two_threads $which: $(ratio "${scalings[-1]}" 1) times one worker's rate"
            if [[ "$which" == ours ]]; then
                scaling_apart+=("$(number '.rows[2].scaling' "$json")")
                say "    two_threads apart: $(ratio "${scaling_apart[-1]}" 1) times one worker's rate"
            fi
        else
            failed "$which two_threads"
        fi
    fi
    if wanted truncate; then
        local words=(--modes single-handle) prepare=true
        if [[ "$which" == kernel ]]; then
            words=(--kernel "$mount_point" --modes kernel) prepare="fresh 1024 65536"
        fi
        words=(lab orphans --json --widths 1 --runs 1 --loops "$loops" "${words[@]}")
        if json="$(undisturbed "$prepare" timeout "$limit" "$extant" "${words[@]}")"; then
            note truncate "$which" "$(number '.rows[0].per_s' "$json")" null
        else
            failed "$which truncate"
        fi
    fi
}

# failed WHAT: says so, with the reason.
failed() {
    say "    $1 FAILED"
    tail -n 5 -- "$work/log" >&2
}

# --- The run -------------------------------------------------------------------------------------------------------

all=(mknod unlink link mkdir rmdir truncate two_threads)
keys=("$@")
(($# > 0)) || keys=("${all[@]}")
for key in "${keys[@]}"; do
    if [[ " ${all[*]} " != *" $key "* ]]; then
        say "unknown key: $key"
        exit 2
    fi
done

need_packages e2fsprogs jq mount
extant="${EXTANT:-}"
if [[ -z "$extant" ]]; then
    need_rust
    say "building extant ..."
    cargo build --quiet --release --package extant-cli
    extant="${CARGO_TARGET_DIR:-target}/release/extant"
fi
extant="$(realpath -e -- "$extant")"
((EUID == 0)) || say "note: not root: without the kernel's side"

work="$(mktemp -d -- "${WORK:-/dev/shm}/extant-bench.XXXXXX")"
mount_point="$work/mnt"
mkdir -- "$mount_point"

for key in "${all[@]}"; do
    declare -a "rate_${key}_ours=()" "rate_${key}_kernel=()" "cpu_${key}_ours=()" "cpu_${key}_kernel=()"
done
declare -a scaling_ours=() scaling_apart=() scaling_kernel=()
for ((n = 1; n <= rounds; n++)); do
    say "  round $n"
    round ours
    ((EUID != 0)) || round kernel
done

# medians KEY: sets ours, kernel, ours_cpu, kernel_cpu.
medians() {
    local -n ours_all="rate_$1_ours" kernel_all="rate_$1_kernel" ours_cpu_all="cpu_$1_ours" kernel_cpu_all="cpu_$1_kernel"
    ours="$(median "${ours_all[@]}")" kernel="$(median "${kernel_all[@]}")"
    ours_cpu="$(median "${ours_cpu_all[@]}")" kernel_cpu="$(median "${kernel_cpu_all[@]}")"
}

printf '{'
for key in "${keys[@]}"; do
    scaling=""
    medians "$key"
    [[ "$key" != two_threads ]] ||
        scaling=", \"scaling\": $(median "${scaling_ours[@]}"), \"apart_scaling\": $(median "${scaling_apart[@]}"), \"kernel_scaling\": $(median "${scaling_kernel[@]}")"
    cpu=""
    [[ "$key" == truncate ]] ||
        cpu=", \"ours_per_cpu_s\": $ours_cpu, \"kernel_per_cpu_s\": $kernel_cpu, \"cpu_ratio\": $(ratio "$ours_cpu" "$kernel_cpu")"
    printf '"%s": {"ours_per_s": %s, "kernel_per_s": %s, "ratio": %s%s%s}, ' \
        "$key" "$ours" "$kernel" "$(ratio "$ours" "$kernel")" "$cpu" "$scaling"
done
printf '"names": %d, "dirs": %d, "loops": %d, "rounds": %d, "cpus": %d, "kernel": %s, "commands": {' \
    "$names" "$dirs" "$loops" "$rounds" "$(nproc)" "$(json_string "$(uname -r)")"
printf '"ours": "extant lab createmany --image mem:SIZE --cache %s ...", "kernel": "mke2fs -O %s; mount -o loop,noinit_itable,noatime; ' \
    "$cache" "$features"
printf 'extant lab createmany --kernel DIR ...", "mknod": "-m test %d", "unlink": "--then-unlink", ' "$names"
printf '"two_threads": "--widths 1,2 --runs %d --apart -m -t 0.1 test; the kernel: --widths 1,2 --runs %d -m -t 1 test", ' \
    "$turns" $(((turns + 2) / 3))
printf '"link": "--renew-target -l target test %d", "mkdir": "-d test %d", "truncate": "lab orphans --widths 1"}}\n' \
    "$names" "$dirs"
