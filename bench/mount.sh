#!/usr/bin/env bash
# How fast is a FUSE mount? Side by side, in the same rounds: one JSON object on stdout, progress and a table
# on stderr.
#
#   bench/mount.sh [--quick] [KEY...]     the rows to measure (all if none is given)
#
#   create mknod stat unlink      operations on NAMES empty files, a thousand in each directory; stat with
#                                 cold caches
#   create2 create4 stat2 stat4   the same by two and by four processes, each in directories of its own
#   find                          `find -ls` over FILES generated files, cold, of a read-only mount
#   untar cpout rmrf              `tar x` of the first TREE_FILES entries of /usr/share (of a generated tree
#                                 where it has less than half as many), `cp -a` of this tree to RAM, cold, and
#                                 `rm -rf` of it
#   write4k write64k write1m      one file of DATA_MB, in blocks of that size; without fsync, as cp writes
#   read4k read64k read1m         the same file, cold
#   read                          a file of SIZE_MB with `dd bs=1M`, cold, of a read-only mount
#   randwrite4k                   blocks of 4 KiB at random places of the file of DATA_MB
#   append80 bytes1               20,000 appends of 80 bytes; 50,000 writes of one byte
#   fsync                         4 KiB and fsync, 1,000 times
#   small                         SMALL files of 4 KiB, cold: each is opened and read, then all once more
#
#   ours          `extant mount -o rw,transport=dev`; `extant mount -o ro` for read and find
#   ours_uring    the same with transport=uring, if TRANSPORT=uring is given and the parameter enable_uring of
#                 the kernel's module fuse is Y
#   null          crates/service/fuse/examples/null_server.rs over the same transport: it keeps names and sizes in
#                 hash maps, and no bytes
#   null_pinned   the same, with server and clients on one CPU: the limit for one client, since no request
#                 waits for another CPU to wake up
#   fuse2fs       of e2fsprogs
#   kernel        the kernel's ext4 on a loop device
#
# All but the null server have equal new images, made by extant, for each round and group of rows. Cold means
# that the kernel's caches are empty; the servers keep theirs. Rates are medians of the rounds, with the
# smallest and the largest; ratio_SIDE is ours divided by that side. A side that could not run a row is null.
# Needs root.
#
#   ROUNDS=3          rounds; 1 with --quick, which also divides the amounts below by 4 to 10
#   NAMES=20000  FILES=100000  TREE_FILES=10000  SMALL=5000  DATA_MB=256  SIZE_MB=1024
#   TRANSPORT=uring   adds the side ours_uring
#   LIMIT=300         seconds after which one command is given up
#   WARM_MB=1024      memory that is touched before each mount, so that page faults to the hypervisor are not
#                     measured; 0 with --quick
#   WORK=/dev/shm     where the images go: in memory, so that no disk is measured
#   EXTANT=PATH, NULL_SERVER=PATH, MOUNT_CLIENT=PATH   the binaries; else they are built
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
# In a mount namespace of its own: a program that makes a namespace meanwhile would get a copy of each mount,
# and as long as it keeps the copy, the server does not end.
if ((EUID == 0)) && [[ -z "${EXTANT_BENCH_NAMESPACE:-}" ]]; then
    EXTANT_BENCH_NAMESPACE=1 exec unshare --mount --propagation private -- \
        "$repository/bench/${BASH_SOURCE[0]##*/}" "$@"
fi
cd -- "$repository"
. ./bench/lib.sh

# Rows that share a mount are a group.
declare -A group_rows=(
    [names]="create stat unlink mknod"
    [clients]="create2 stat2 create4 stat4"
    [find]="find"
    [tree]="untar cpout rmrf"
    [data]="write4k read4k write64k read64k write1m read1m randwrite4k append80 bytes1 fsync small"
    [read]="read"
)
groups=(names clients find tree data read)
all_sides=(ours ours_uring null null_pinned fuse2fs kernel)

# unit KEY
unit() {
    case "$1" in
    read* | write*) printf 'MiB/s' ;;
    find | untar | cpout | rmrf | small) printf 'files/s' ;;
    *) printf 'operations/s' ;;
    esac
}

work=""
mount_point=""
server=""

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

# release: nothing stays mounted, and no server stays.
release() {
    local attempt status=0
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
        for ((attempt = 0; attempt < 3000; attempt++)); do
            kill -0 "$server" 2>/dev/null || break
            sleep 0.02
        done
        ! kill -9 "$server" 2>/dev/null || say "    the server did not end, and was killed"
        wait "$server" 2>/dev/null || status=$?
        server=""
        ((status == 0)) || say "    the server ended with exit code $status: $(tail -n 1 -- "$work/server.log")"
    fi
}

# --- Running one side ---------------------------------------------------------------------------------------

# serve COMMAND...: starts a server, and waits until it has mounted.
serve() {
    local attempt
    "${pin[@]}" "$@" >"$work/server.log" 2>&1 &
    server=$!
    for ((attempt = 0; attempt < 200; attempt++)); do
        ! mountpoint -q -- "$mount_point" || return 0
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

# mounted SIDE ro|rw IMAGE [TREE]: mounts that side's file system; TREE for the null server.
mounted() {
    local access="$2" image="$3" options=fakeroot
    pin=()
    [[ "$access" == rw ]] || options=ro
    case "$1" in
    ours) serve "$extant" mount --foreground -o "$access,transport=dev" "$image" "$mount_point" ;;
    ours_uring) serve "$extant" mount --foreground -o "$access,transport=uring" "$image" "$mount_point" ;;
    fuse2fs) serve fuse2fs -f "$image" "$mount_point" -o "$options" ;;
    # Without the thread that zeroes inode tables: it would take time from what is measured.
    kernel) mount -t ext4 -o "loop,noatime,noinit_itable,$access" "$image" "$mount_point" >"$work/server.log" 2>&1 ;;
    null | null_pinned)
        [[ "$1" == null ]] || pin=(taskset -c "$cpu")
        serve "$null_server" "$mount_point" $((size_mb << 20)) 0 dev ${4+"$4"}
        ;;
    esac
}

# cold: writes back what is dirty, and empties the kernel's caches.
cold() {
    # The kernel does not pass syncfs on to a FUSE server, and ours takes fsync of the root for it.
    sync -- "$mount_point"
    sync -f -- "$mount_point"
    echo 3 >/proc/sys/vm/drop_caches
    # Meanwhile the servers handle the kernel's notices that it has dropped its inodes.
    sleep 0.2
}

# note KEY SIDE RATE
note() {
    if wanted "$1"; then
        samples["$1 $2"]+=" $3"
        say "    $2 $1 $(printf '%.0f' "$3")"
    fi
}

# failed KEY SIDE: says so, with the reason; the row gets no number.
failed() {
    say "    $2 $1 FAILED"
    tail -n 5 -- "$work/log" >&2
    return 1
}

# client KEY SIDE ARGUMENTS...: the client prints its rate.
client() {
    local key="$1" side="$2" rate
    shift 2
    if rate="$("${pin[@]}" timeout "$limit" "$mount_client" "$@" 2>"$work/log")"; then
        note "$key" "$side" "$rate"
    else
        failed "$key" "$side"
    fi
}

# timed KEY SIDE AMOUNT COMMAND...: amount per second of a command that runs in the mount.
timed() {
    local key="$1" side="$2" amount="$3" start end
    shift 3
    start="${EPOCHREALTIME/./}"
    if (cd -- "$mount_point" && exec "${pin[@]}" timeout "$limit" "$@") >/dev/null 2>"$work/log"; then
        end="${EPOCHREALTIME/./}"
        note "$key" "$side" "$(awk -v us=$((end - start)) -v n="$amount" 'BEGIN { printf "%.1f", n * 1e6 / us }')"
    else
        failed "$key" "$side"
    fi
}

# wanted KEY...: is one of them to be measured?
wanted() {
    local key
    for key in "$@"; do
        [[ " ${keys[*]} " != *" $key "* ]] || return 0
    done
    return 1
}

# --- The groups: all rows of one side, in one mount. A failure ends the group -------------------------------

run_names() {
    local side="$1"
    if wanted create stat unlink; then
        client create "$side" create "$mount_point" "$names" || return
    fi
    if wanted stat; then
        cold
        client stat "$side" stat "$mount_point" "$names" || return
    fi
    if wanted unlink; then
        client unlink "$side" unlink "$mount_point" "$names" || return
    fi
    if wanted mknod; then
        mkdir -- "$mount_point/mknod"
        client mknod "$side" mknod "$mount_point/mknod" "$names" || return
    fi
}

run_clients() {
    local side="$1" clients
    for clients in 2 4; do
        wanted "create$clients" "stat$clients" || continue
        mkdir -- "$mount_point/$clients"
        client "create$clients" "$side" create "$mount_point/$clients" "$names" "$clients" || return
        if wanted "stat$clients"; then
            cold
            client "stat$clients" "$side" stat "$mount_point/$clients" "$names" "$clients" || return
        fi
    done
}

run_find() {
    cold
    timed find "$1" "$files" find . -ls
}

run_tree() {
    local side="$1"
    mkdir -- "$mount_point/tree"
    timed untar "$side" "$tree_entries" tar xf "$work/tree.tar" -C tree || return
    if wanted cpout; then
        cold
        timed cpout "$side" "$tree_entries" cp -a tree "$work/out" || return
        rm -r -- "$work/out"
    fi
    if wanted rmrf; then
        timed rmrf "$side" "$tree_entries" rm -rf tree || return
    fi
}

run_data() {
    local side="$1" size
    local -A bytes=([4k]=4096 [64k]=65536 [1m]=1048576)
    for size in 4k 64k 1m; do
        wanted "write$size" "read$size" || continue
        client "write$size" "$side" write "$mount_point" "$data_mb" "${bytes[$size]}" || return
        cold
        if wanted "read$size"; then
            client "read$size" "$side" read "$mount_point" "$data_mb" "${bytes[$size]}" || return
        fi
    done
    if wanted randwrite4k; then
        if [[ ! -e "$mount_point/bytes" ]]; then
            client made "$side" write "$mount_point" "$data_mb" 1048576 || return
            cold
        fi
        client randwrite4k "$side" randwrite "$mount_point" "$random_writes" || return
    fi
    if wanted append80; then
        client append80 "$side" append "$mount_point" "$appends" || return
    fi
    if wanted bytes1; then
        client bytes1 "$side" bytes "$mount_point" "$single_bytes" || return
    fi
    # What the rows above wrote would be written back by the first fsyncs.
    cold
    if wanted fsync; then
        client fsync "$side" fsync "$mount_point" "$fsyncs" || return
    fi
    if wanted small; then
        client made "$side" make-small "$mount_point" "$small" || return
        cold
        client small "$side" small "$mount_point" "$small" || return
    fi
}

run_read() {
    cold
    timed read "$1" "$size_mb" dd if=zeros of=/dev/null bs=1M
}

# --- Preparations: what all sides and rounds of a group use -------------------------------------------------

prepare_find() {
    cargo xtask maketree "$work/source" "$files" 2>"$work/log" || return
    "$extant" build --no-sync -o "$work/find.img" --from "$work/source" >/dev/null
}

prepare_tree() {
    if [[ -d /usr/share ]]; then
        (cd /usr/share && find . -mindepth 1 -xdev \( -type f -o -type d -o -type l \) ! -name $'*\n*' -printf '%p\t%s\n') |
            sort | awk -F '\t' -v most="$tree_files" \
            'NR <= most && (bytes += $2) < 256 * 1024 * 1024 { print $1 }' >"$work/list"
    fi
    if [[ -s "$work/list" ]] && (($(wc -l <"$work/list") * 2 > tree_files)); then
        tree_from=/usr/share
        tar cf "$work/tree.tar" -C /usr/share --no-recursion --verbatim-files-from --no-unquote -T "$work/list"
    else
        tree_from=generated
        cargo xtask maketree "$work/unpacked" "$tree_files" 2>"$work/log" || return
        tar cf "$work/tree.tar" -C "$work/unpacked" .
        rm -r -- "$work/unpacked"
    fi
    tree_entries="$(tar tf "$work/tree.tar" | wc -l)"
}

prepare_read() {
    mkdir -- "$work/bytes"
    head -c "${size_mb}M" /dev/urandom >"$work/bytes/zeros"
    "$extant" build --no-sync -o "$work/read.img" --from "$work/bytes" >/dev/null
    rm -r -- "$work/bytes"
}

# group GROUP SIDE: one side's turn.
group() {
    local name="$1" side="$2" image="$work/image" access=rw tree=()
    case "$name" in
    find) image="$work/find.img" access=ro tree=("$work/source") ;;
    read) image="$work/read.img" access=ro ;;
    *)
        if [[ "$side" != null* ]]; then
            "$extant" mkfs --quiet --no-sync --force --inodes 262144 "$image" 2G
        fi
        ;;
    esac
    # shellcheck disable=SC2119
    warm
    if mounted "$side" "$access" "$image" "${tree[@]}"; then
        "run_$name" "$side" || say "    the rest of this group is left out"
    else
        say "    $side cannot be mounted: $(tail -n 1 -- "$work/server.log")"
    fi
    release
    rm -rf -- "$work/image" "$work/out"
}

# --- The run ------------------------------------------------------------------------------------------------

quick=0
keys=()
all_keys=()
for name in "${groups[@]}"; do
    read -ra of_group <<<"${group_rows[$name]}"
    all_keys+=("${of_group[@]}")
done
for argument in "$@"; do
    case "$argument" in
    -h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' -- "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --quick) quick=1 ;;
    *)
        if [[ " ${all_keys[*]} " != *" $argument "* ]]; then
            say "unknown key: $argument; there are: ${all_keys[*]}"
            exit 2
        fi
        keys+=("$argument")
        ;;
    esac
done
((${#keys[@]} > 0)) || keys=("${all_keys[@]}")

if ((quick)); then
    rounds="${ROUNDS:-1}" names="${NAMES:-4000}" files="${FILES:-10000}" tree_files="${TREE_FILES:-2000}" small="${SMALL:-1000}"
    data_mb="${DATA_MB:-64}" size_mb="${SIZE_MB:-128}" WARM_MB="${WARM_MB:-0}"
    random_writes=4000 appends=4000 single_bytes=10000 fsyncs=200
else
    rounds="${ROUNDS:-3}" names="${NAMES:-20000}" files="${FILES:-100000}" tree_files="${TREE_FILES:-10000}" small="${SMALL:-5000}"
    data_mb="${DATA_MB:-256}" size_mb="${SIZE_MB:-1024}" WARM_MB="${WARM_MB:-1024}"
    random_writes=20000 appends=20000 single_bytes=50000 fsyncs=1000
fi
# For warm: the memory that the last mount used has not been returned to the hypervisor yet.
SETTLE="${SETTLE:-0}"
limit="${LIMIT:-300}"
tree_entries=0
tree_from=""
pin=()

if ((EUID != 0)); then
    say "bench/mount.sh needs root: only root can empty the kernel's caches and mount the kernel's ext4"
    exit 1
fi
need_packages fuse3
need_packages fuse2fs || say "note: without fuse2fs"
need_rust
target="${CARGO_TARGET_DIR:-target}"
extant="${EXTANT:-}"
null_server="${NULL_SERVER:-}"
mount_client="${MOUNT_CLIENT:-}"
if [[ -z "$extant" ]]; then
    say "building extant ..."
    cargo build --quiet --release --package extant-cli
    extant="$target/release/extant"
fi
if [[ -z "$null_server" || -z "$mount_client" ]]; then
    cargo build --quiet --release --package extant-fuse --examples
    null_server="${null_server:-$target/release/examples/null_server}"
    mount_client="${mount_client:-$target/release/examples/mount_client}"
fi
extant="$(realpath -e -- "$extant")"
null_server="$(realpath -e -- "$null_server")"
mount_client="$(realpath -e -- "$mount_client")"

# The last CPU that may be used.
cpu="$(sed -n 's/^Cpus_allowed_list:.*[^0-9]\([0-9]*\)$/\1/p' /proc/self/status)"
sides=(ours)
if [[ "${TRANSPORT:-}" == uring ]]; then
    if [[ "$(cat /sys/module/fuse/parameters/enable_uring 2>/dev/null)" == Y ]]; then
        sides+=(ours_uring)
    else
        say "note: without ours_uring: it needs Y in /sys/module/fuse/parameters/enable_uring"
    fi
fi
sides+=(null null_pinned)
if command -v fuse2fs >/dev/null; then
    sides+=(fuse2fs)
fi
sides+=(kernel)

work="$(mktemp -d -- "${WORK:-/dev/shm}/extant-bench.XXXXXX")"
mount_point="$work/mnt"
mkdir -- "$mount_point"
declare -A samples=()
for name in "${groups[@]}"; do
    read -ra of_group <<<"${group_rows[$name]}"
    wanted "${of_group[@]}" || continue
    say "$name"
    if declare -F "prepare_$name" >/dev/null && ! "prepare_$name"; then
        tail -n 5 -- "$work/log" >&2
        exit 1
    fi
    for ((round = 1; round <= rounds; round++)); do
        say "  round $round"
        for side in "${sides[@]}"; do
            group "$name" "$side"
        done
    done
    rm -rf -- "$work/source" "$work/find.img" "$work/tree.tar" "$work/read.img"
done

# --- The results --------------------------------------------------------------------------------------------

# of KEY SIDE FUNCTION: median, smallest or largest of its samples.
of() {
    local values
    read -ra values <<<"${samples["$1 $2"]:-}"
    "$3" "${values[@]}"
}

rows=()
{
    printf '%-12s %-12s' row unit
    printf ' %11s' "${sides[@]}" ours/pinned ours/kernel
    printf '\n'
} >&2
for key in "${keys[@]}"; do
    declare -A medians=()
    for side in "${all_sides[@]}"; do
        medians[$side]="$(of "$key" "$side" median)"
    done
    row="\"$key\": {\"unit\": \"$(unit "$key")\""
    for side in "${all_sides[@]}"; do
        [[ "$side" != ours_uring || "${TRANSPORT:-}" == uring ]] || continue
        row+=", \"$side\": "
        if [[ "${medians[$side]}" == null ]]; then
            row+=null
        else
            row+="{\"median\": ${medians[$side]}, \"min\": $(of "$key" "$side" smallest), "
            row+="\"max\": $(of "$key" "$side" largest)}"
        fi
    done
    for side in null_pinned null fuse2fs kernel; do
        row+=", \"ratio_$side\": $(ratio "${medians[ours]}" "${medians[$side]}")"
    done
    rows+=("$row}")
    {
        printf '%-12s %-12s' "$key" "$(unit "$key")"
        for side in "${sides[@]}"; do
            if [[ "${medians[$side]}" == null ]]; then
                printf ' %11s' -
            else
                printf ' %11.0f' "${medians[$side]}"
            fi
        done
        printf ' %11s' "$(ratio "${medians[ours]}" "${medians[null_pinned]}")" \
            "$(ratio "${medians[ours]}" "${medians[kernel]}")"
        printf '\n'
    } >&2
done

printf '{"host": {"cpus": %d, "cpu": %s, "memory_mb": %d, "kernel": %s, "fuse2fs": %s}, ' "$(nproc)" \
    "$(json_string "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p)")" \
    "$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)" "$(json_string "$(uname -r)")" \
    "$(json_string "$(fuse2fs --version 2>&1 | awk 'NR == 1 { print $2 }')")"
printf '"rounds": %d, "names": %d, "files": %d, "data_mb": %d, "size_mb": %d, "small": %d, ' \
    "$rounds" "$names" "$files" "$data_mb" "$size_mb" "$small"
printf '"tree": {"entries": %d, "from": %s}, "commands": {' "$tree_entries" "$(json_string "$tree_from")"
printf '"ours": "extant mount -o rw,transport=dev IMG DIR", "fuse2fs": "fuse2fs IMG DIR -o fakeroot", "null": "null_server DIR SIZE", '
printf '"kernel": "mount -o loop,noatime,noinit_itable IMG DIR"}, "rows": {'
separator=""
for row in "${rows[@]}"; do
    printf '%s%s' "$separator" "$row"
    separator=", "
done
printf '}}\n'
