#!/usr/bin/env bash
# How much of an image stays the same when its tree changes a little: `extant build --like` beside a new
# build. Prints one JSON object: for each change the share of 64 KiB chunks of the old image that the new one
# has at the same place, and the seconds of both.
#
#   bench/like.sh [TREE]        # default: /usr; needs three times its size in DIR
#   DIR=/dev/shm bench/like.sh  # where the images and the changed copy of the tree go (default: a temporary
#                               # directory of /tmp)
#
# Changes, each on top of the one before:
#   time      one file gets another time
#   size      every 100th regular file grows by 1 to 4999 bytes
#   upgrade   every 20th file of one directory of programs or libraries gets new bytes (of the same size)
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
cargo build -q --release -p extant-cli
extant=${CARGO_TARGET_DIR:-target}/release/extant
tree=${1:-/usr}
work=$(mktemp -d -p "${DIR:-/tmp}")
trap 'rm -rf -- "$work"' EXIT

cp -a --reflink=auto -- "$tree" "$work/tree"
"$extant" build -q -f -o "$work/old.img" --headroom 10 --from "$work/tree"

# The share of equal 64 KiB chunks of two files.
same() {
    python3 - "$1" "$2" <<'END'
import sys
chunk, equal, total = 1 << 16, 0, 0
with open(sys.argv[1], 'rb') as one, open(sys.argv[2], 'rb') as other:
    while piece := one.read(chunk):
        total += 1
        equal += piece == other.read(chunk)
print(f'{100 * equal / total:.2f}')
END
}

# Builds the changed tree in both ways, and prints a JSON member.
measure() {
    local name=$1 begin like anew
    begin=$(date +%s.%N)
    "$extant" build --json -f -o "$work/like.img" --like "$work/old.img" --from "$work/tree" >"$work/report"
    like=$(date +%s.%N)
    "$extant" build -q -f -o "$work/new.img" --headroom 10 --from "$work/tree"
    anew=$(date +%s.%N)
    "$extant" diff -q "$work/like.img" "$work/tree"
    e2fsck -fn "$work/like.img" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; exit 1; }
    python3 - "$name" "$work/report" "$(same "$work/old.img" "$work/like.img")" \
        "$(same "$work/old.img" "$work/new.img")" "$begin" "$like" "$anew" <<'END'
import json, sys
name, report, like, new, begin, middle, end = sys.argv[1:]
report = json.load(open(report))
print(json.dumps({'change': name, 'modified': report['modified'], 'written_bytes': report['written_bytes'],
                  'same_like_percent': float(like), 'same_new_percent': float(new),
                  'seconds_like': round(float(middle) - float(begin), 2),
                  'seconds_new': round(float(end) - float(middle), 2)}))
END
}

find "$work/tree" -type f -links 1 -print0 | sort -z >"$work/files"
touch -m -d 2001-02-03 "$(head -z -n 1 "$work/files" | tr -d '\0')"
time_row=$(measure time)
python3 - "$work/files" <<'END'
import os, sys
paths = open(sys.argv[1], 'rb').read().split(b'\0')[:-1]
for number, path in enumerate(paths[::100]):
    mode = os.stat(path).st_mode
    os.chmod(path, mode | 0o200)
    with open(path, 'ab') as file:
        file.write(b'x' * (number * 617 % 4999 + 1))
    os.chmod(path, mode)
END
size_row=$(measure size)
cp -- "$work/like.img" "$work/old.img"
python3 - "$work/files" "$work/bytes" <<'END'
import os, sys
paths = open(sys.argv[1], 'rb').read().split(b'\0')[:-1]
chosen = [path for path in paths if b'/lib/' in path or b'/bin/' in path][::20]
total = 0
for path in chosen:
    size = os.stat(path).st_size
    total += size
    mode = os.stat(path).st_mode
    os.chmod(path, mode | 0o200)
    with open(path, 'r+b') as file:
        file.write(os.urandom(size))
    os.chmod(path, mode)
open(sys.argv[2], 'w').write(str(total))
END
upgrade_row=$(measure upgrade)
printf '{"tree": "%s", "upgraded_bytes": %s, "rows": [%s, %s, %s]}\n' "$tree" "$(cat "$work/bytes")" \
    "$time_row" "$size_row" "$upgrade_row"
