#!/usr/bin/env bash
# Does a mount behave as POSIX says? The test suite pjdfstest with all its optional parts, on a mount of ours and on the kernel's
# ext4 beside it. One JSON object on stdout, progress and failures on stderr; exit code 1 if something fails on ours that passes on
# the kernel's, or e2fsck is not content afterwards.
#
#   bench/pjdfstest.sh [PATTERN...]     tests whose names contain one of these (all if none is given)
#
# The suite runs twice on each side: the tests that remount the file system read-only have a process of their own, since some of the
# others leave files open, with which no file system can be remounted so. Needs root: the tests switch users. A user "tests" and the
# helpers of mount(8) (`extant install-helpers`) are made if they are not there, and removed again.
#
#   EXTANT=PATH       the binary; else it is built
#   PJDFSTEST=PATH    the suite; else this version of it is installed below the target directory
#   OPTIONS=LIST      further options of our mount
#   WORK=/dev/shm     where the images go
set -euo pipefail
export LC_ALL=C

repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

version=0.2.2
work=""
made_user=""
made_links=""

cleanup() {
    local status=$?
    trap - EXIT
    if [[ -n "$work" ]]; then
        local side
        for side in ours kernel second; do
            mountpoint -q -- "$work/$side-mount" && { umount -- "$work/$side-mount" || umount -l -- "$work/$side-mount"; } || true
        done
        rm -rf --one-file-system -- "$work" || true
    fi
    [[ -z "$made_links" ]] || rm -f -- /sbin/mount.fuse.extant /sbin/umount.fuse.extant
    [[ -z "$made_user" ]] || userdel -- "$made_user" >/dev/null 2>&1 || true
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# configure MAY_REMOUNT: the suite's configuration. Its own default leaves out nearly everything.
configure() {
    cat <<END
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
# More than a tick: the granularity of file systems' clocks.
naptime = 0.02
allow_remount = $1

[dummy_auth]
entries = [["nobody", "$(id -gn nobody)"], ["tests", "$(id -gn tests)"]]
END
}

# suite SIDE CONFIGURATION PATTERN...: appends "NAME ok|FAILED|skipped" lines to SIDE.results, all that it says to SIDE.log.
suite() {
    local side="$1" configuration="$2"
    shift 2
    "$pjdfstest" -c "$work/$configuration.toml" -p "$work/$side-mount" -s "$work/second-mount" "$@" >"$work/part" 2>&1 || true
    # Colours out.
    sed -i 's/\x1b\[[0-9;]*m//g' -- "$work/part"
    if ! grep -q '^Summary' -- "$work/part"; then
        say "the suite did not come to its end on $side:"
        tail -n 20 -- "$work/part" >&2
        exit 1
    fi
    cat -- "$work/part" >>"$work/$side.log"
    awk 'NF == 2 && $1 ~ /::/ && $2 ~ /^(ok|FAILED|skipped)$/' "$work/part" >>"$work/$side.results"
}

# run SIDE PATTERN...
run() {
    local side="$1" pattern
    shift
    : >"$work/$side.log"
    suite "$side" stays "$@"
    # Skipped there: those that remount.
    grep ' skipped$' -- "$work/$side.results" | grep '::erofs' | sed "s/ .*//; s/^/pjdfstest::tests::/" >"$work/remounts" || true
    grep -v '::erofs.* skipped$' -- "$work/$side.results" >"$work/rest" || true
    mv -- "$work/rest" "$work/$side.results"
    local -a remounts
    mapfile -t remounts <"$work/remounts"
    if ((${#remounts[@]} > 0)); then
        suite "$side" remounts --exact "${remounts[@]}"
    fi
    say "  $side: $(count "$side" ok) passed, $(count "$side" FAILED) failed, $(count "$side" skipped) skipped"
}

# links_max SIDE: how many names a file can have, for link::link_count_max, which skips file systems that the C library does not know.
links_max() {
    mkdir -- "$work/$1-mount/links"
    perl -e 'chdir $ARGV[0]; open F, ">", "1"; close F; my $n = 1; $n++ while link "1", $n + 1; print $n if $!{EMLINK}' \
        "$work/$1-mount/links" | grep . || printf null
    rm -r -- "$work/$1-mount/links"
}

# count SIDE WORD
count() {
    awk -v word="$2" '$2 == word' "$work/$1.results" | wc -l
}

# names SIDE WORD: sorted.
names() {
    awk -v word="$2" '$2 == word { print $1 }' "$work/$1.results" | sort
}

if ((EUID != 0)); then
    say "bench/pjdfstest.sh needs root: its tests switch users, make device nodes and remount"
    exit 1
fi
need_packages e2fsprogs mount fuse3 gcc libc6-dev libacl1-dev acl passwd perl-base
target="$(realpath -m -- "${CARGO_TARGET_DIR:-target}")"
extant="${EXTANT:-}"
if [[ -z "$extant" ]]; then
    need_rust
    cargo build --quiet --release --package extant-cli
    extant="$target/release/extant"
fi
extant="$(realpath -e -- "$extant")"
pjdfstest="${PJDFSTEST:-$target/tools/bin/pjdfstest}"
if [[ ! -x "$pjdfstest" ]]; then
    need_rust
    say "installing pjdfstest $version ..."
    cargo install --quiet --locked --root "$target/tools" --version "$version" pjdfstest
    pjdfstest="$target/tools/bin/pjdfstest"
fi
pjdfstest="$(realpath -e -- "$pjdfstest")"
if ! id tests >/dev/null 2>&1; then
    useradd --system --no-create-home --user-group --shell /usr/sbin/nologin tests
    made_user=tests
fi

if [[ ! -e /sbin/mount.fuse.extant && ! -e /sbin/umount.fuse.extant ]]; then
    "$extant" install-helpers
    made_links=yes
fi

work="$(mktemp -d -- "${WORK:-/dev/shm}/extant-pjdfstest.XXXXXX")"
chmod 755 -- "$work"
configure false >"$work/stays.toml"
configure true >"$work/remounts.toml"
mkdir -- "$work/ours-mount" "$work/kernel-mount" "$work/second-mount"
mount -t tmpfs none "$work/second-mount"
for side in ours kernel; do
    truncate -s 1G -- "$work/$side.img"
    mke2fs -q -F -t ext4 "$work/$side.img"
done
mount -o loop "$work/kernel.img" "$work/kernel-mount"
"$extant" mount "$work/ours.img" "$work/ours-mount" -o "rw,allow_other,suid,dev${OPTIONS:+,$OPTIONS}"
say "pjdfstest $version:"
run kernel "$@"
run ours "$@"
ours_links="$(links_max ours)" kernel_links="$(links_max kernel)"
umount -- "$work/kernel-mount"
"$extant" umount "$work/ours-mount"
clean=true
if ! e2fsck -fn "$work/ours.img" >"$work/e2fsck" 2>&1; then
    clean=false
    say "e2fsck finds, afterwards:"
    cat -- "$work/e2fsck" >&2
fi

for name in $(comm -12 <(names kernel ok) <(names ours skipped)); do
    say "passes on the kernel's ext4, skipped on ours: $name"
    grep -A 1 -F -- "$name " "$work/ours.log" | tail -n +2 >&2 || true
done
mapfile -t worse < <(comm -12 <(names kernel ok) <(names ours FAILED))
for name in "${worse[@]}"; do
    say "passes on the kernel's ext4, fails on ours: $name"
    grep -A 2 -F -- "$name " "$work/ours.log" | tail -n +2 >&2 || true
done
list() {
    local name first=1
    printf '['
    while read -r name; do
        ((first)) || printf ', '
        first=0
        json_string "$name"
    done
    printf ']'
}
side_json() {
    printf '{"passed": %d, "failed": %d, "skipped": %d, "failures": %s}' \
        "$(count "$1" ok)" "$(count "$1" FAILED)" "$(count "$1" skipped)" "$(names "$1" FAILED | list)"
}
printf '{"pjdfstest": "%s", "ours": %s, "kernel": %s, "only_ours_fails": %d, "e2fsck_clean": %s, '\
'"links_max": {"ours": %s, "kernel": %s}, "kernel_version": %s}\n' \
    "$version" "$(side_json ours)" "$(side_json kernel)" "${#worse[@]}" "$clean" "$ours_links" "$kernel_links" "$(json_string "$(uname -r)")"
((${#worse[@]} == 0)) && [[ "$clean" == true ]]
