#!/usr/bin/env bash
# Does PostgreSQL keep every acknowledged row when the server of its mount is killed? In each round, pgbench and four clients that
# insert rows run on a database on a mount of ours until the server gets SIGKILL. The image is mounted again, PostgreSQL recovers, and
# every row whose insertion was acknowledged must be there, in this round and all earlier ones; pgbench's sums must agree. One JSON
# object on stdout, progress on stderr; exit code 1 if a row is lost or e2fsck is not content at the end.
#
#   bench/postgres_kills.sh [ROUNDS]     20 rounds if none are given
#
# Needs root, and PostgreSQL's programs (Debian: postgresql).
#
#   EXTANT=PATH       the binary; else it is built
#   OPTIONS=LIST      further options of our mount
#   SECONDS_RUN=4     time of the load in each round
#   WORK=/dev/shm     where the image is
set -euo pipefail
export LC_ALL=C

case "${1:-}" in
-h | --help)
    sed -n '2,16s/^# \{0,1\}//p' -- "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
rounds="${1:-20}"
repository="$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")"
cd -- "$repository"
. ./bench/lib.sh

fail() {
    printf "postgres_kills.sh: %s\n" "$*" >&2
    exit 1
}

programs="$(dirname -- "$(find /usr/lib/postgresql -name initdb 2>/dev/null | sort -V | tail -n 1)")"
[[ -x "$programs/initdb" ]] || fail "PostgreSQL is not installed (Debian: postgresql)"
if [[ -z "${EXTANT:-}" ]]; then
    cargo build --release --package extant-cli >&2
    EXTANT=target/release/extant
fi
extant="$(realpath -- "$EXTANT")"

work="$(mktemp -d "${WORK:-/dev/shm}/extant-postgres.XXXXXX")"
mnt="$work/mnt"
image="$work/image"
data="$mnt/data"
mkdir -- "$mnt"
chmod 755 "$work"
server=""
postmaster=""

stop() {
    if [[ -n "$postmaster" ]]; then
        # shellcheck disable=SC2046 # one word for each process
        kill -KILL "$postmaster" $(pgrep -P "$postmaster") 2>/dev/null || true
        wait "$postmaster" 2>/dev/null || true
        rm -f -- "$work"/run/.s.*
    fi
    postmaster=""
    if [[ -n "$server" ]]; then
        kill -KILL "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=""
    fi
    local attempt
    for ((attempt = 0; attempt < 100; attempt++)); do
        mountpoint -q -- "$mnt" 2>/dev/null || grep -q " $mnt " /proc/self/mountinfo || return 0
        umount -l -- "$mnt" 2>/dev/null || sleep 0.1
    done
}

cleanup() {
    local status=$?
    trap - EXIT
    stop
    rm -rf --one-file-system -- "$work" || true
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

start() {
    "$extant" mount --foreground -o "rw,allow_other${OPTIONS:+,$OPTIONS}" "$image" "$mnt" >"$work/mount.log" 2>&1 &
    server=$!
    local attempt
    for ((attempt = 0; attempt < 100; attempt++)); do
        mountpoint -q -- "$mnt" && break
        sleep 0.1
    done
    mountpoint -q -- "$mnt" || fail "not mounted: $(cat "$work/mount.log")"
}

as_postgres() {
    setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/tmp PGHOST="$work/run" PGDATABASE=postgres "$@"
}

run_postgres() {
    setpriv --reuid=postgres --regid=postgres --clear-groups "$programs/postgres" -D "$data" -k "$work/run" -c listen_addresses= -c shared_buffers=64MB \
        >"$work/postgres.log" 2>&1 &
    postmaster=$!
    local attempt
    for ((attempt = 0; attempt < 300; attempt++)); do
        as_postgres "$programs/pg_isready" -q && return 0
        kill -0 "$postmaster" 2>/dev/null || break
        sleep 0.1
    done
    fail "PostgreSQL does not start: $(tail -n 5 "$work/postgres.log")"
}

mkdir -- "$work/run"
chown postgres: "$work/run"
"$extant" mkfs "$image" 2G >&2
start
mkdir -- "$data"
chown postgres: "$data"
chmod 700 "$data"
as_postgres "$programs/initdb" -D "$data" -A trust >"$work/initdb.log" 2>&1 || fail "initdb: $(tail -n 3 "$work/initdb.log")"
run_postgres
as_postgres "$programs/pgbench" -q -i -s 2 >"$work/pgbench.log" 2>&1
as_postgres psql -q -c "CREATE TABLE rows (id bigint PRIMARY KEY)"
touch "$work/acknowledged"

lost=0
for ((round = 1; round <= rounds; round++)); do
    as_postgres "$programs/pgbench" -n -c 2 -T 600 >/dev/null 2>&1 &
    load=$!
    clients=()
    for client in 1 2 3 4; do
        first=$((round * 100000000 + client * 10000000))
        (
            seq "$first" $((first + 9999999)) | sed 's/.*/INSERT INTO rows VALUES (&) RETURNING id;/' |
                as_postgres psql -qAt -f - >"$work/got.$client" 2>/dev/null
        ) &
        clients+=($!)
    done
    sleep "${SECONDS_RUN:-4}"
    kill -KILL "$server"
    stop
    kill "$load" "${clients[@]}" 2>/dev/null || true
    wait "$load" "${clients[@]}" 2>/dev/null || true
    # The last line may be cut off.
    for client in 1 2 3 4; do
        sed -n '/^[0-9]\{9,\}$/p' "$work/got.$client" >>"$work/acknowledged"
    done
    start
    rm -f -- "$data/postmaster.pid"
    run_postgres
    as_postgres psql -qAt -c "SELECT id FROM rows" | sort >"$work/there"
    missing="$(sort "$work/acknowledged" | comm -23 - "$work/there" | wc -l)"
    sums="$(as_postgres psql -qAt -c "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND coalesce((SELECT sum(delta) FROM pgbench_history), 0) = (SELECT sum(abalance) FROM pgbench_accounts)")"
    printf 'round %d: %d rows acknowledged so far, %d lost, sums agree: %s\n' \
        "$round" "$(wc -l <"$work/acknowledged")" "$missing" "$sums" >&2
    if ((missing > 0)) || [[ "$sums" != t ]]; then
        lost=$((lost + 1))
    fi
done
acknowledged="$(wc -l <"$work/acknowledged")"
stop
start
"$extant" umount "$mnt" >&2
wait "$server" 2>/dev/null || true
server=""
clean=true
e2fsck -fn "$image" >"$work/e2fsck.log" 2>&1 || clean=false
printf '{"rounds": %d, "acknowledged": %d, "bad_rounds": %d, "e2fsck_clean": %s}\n' "$rounds" "$acknowledged" "$lost" "$clean"
[[ "$lost" == 0 && "$clean" == true ]]
