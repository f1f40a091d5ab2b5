#!/usr/bin/env bash
# What an upgrade of packages rewrites in an image: `extant update` in place, and `extant build --like`. Prints one
# JSON object: the bytes of the files that the upgrade changed, and the bytes that each way wrote.
#
#   bench/upgrade.sh                     # as root; needs debootstrap and 4 GB in DIR
#   SUITE=bookworm PACKAGES=git,perl bench/upgrade.sh
#   DIR=/var/tmp bench/upgrade.sh        # where the trees and images go (default: a temporary directory of /tmp)
#
# The old tree is /usr of a new system of SUITE with PACKAGES; the new tree is the same after `apt-get dist-upgrade`
# with the security updates. The mirrors are those of this system's apt.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
cargo build -q --release -p extant-cli
extant=$(realpath "${CARGO_TARGET_DIR:-target}/release/extant")
suite=${SUITE:-bookworm}
packages=${PACKAGES:-git,python3,curl,openssl,perl,systemd,vim,gcc,libssl-dev,openssh-server,apache2,sqlite3}
work=$(mktemp -d -p "${DIR:-/tmp}")
trap 'umount "$work/new/proc" 2>/dev/null || true; rm -rf -- "$work"' EXIT

# The addresses of the main and of the security archive.
addresses() {
    local lists=(/etc/apt/sources.list*)
    grep -rhoE '(URIs:|^deb( \[[^]]*\])?) +[^ ]+' "${lists[@]}" | awk '{print $NF}'
}
main=$(addresses | grep -m1 -E '/debian/?$' || true)
security=$(addresses | grep -m1 -E '/debian-security/?$' || true)
if [[ -z "$main" || -z "$security" ]]; then
    echo "upgrade: apt's sources name no mirror of Debian and of its security updates" >&2
    exit 1
fi

debootstrap --variant=minbase --include="$packages" "$suite" "$work/old" "$main" >"$work/log" 2>&1 ||
    { tail -5 "$work/log" >&2; exit 1; }
echo "deb $security $suite-security main" >"$work/old/etc/apt/sources.list.d/security.list"
chroot "$work/old" apt-get -q clean
cp -a -- "$work/old" "$work/new"
mount -t proc proc "$work/new/proc"
{
    chroot "$work/new" apt-get -q update
    DEBIAN_FRONTEND=noninteractive chroot "$work/new" apt-get -y -q dist-upgrade
} >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
umount "$work/new/proc"

"$extant" build -q -o "$work/old.img" --headroom 10 --from "$work/old/usr"
"$extant" build --json -o "$work/like.img" --like "$work/old.img" --from "$work/new/usr" >"$work/like"
cp -- "$work/old.img" "$work/updated.img"
"$extant" update --json "$work/updated.img" --from "$work/new/usr" >"$work/update"
for image in like updated; do
    "$extant" diff -q "$work/$image.img" "$work/new/usr"
    e2fsck -fn "$work/$image.img" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; exit 1; }
done
python3 - "$work" <<'END'
import json, os, sys
work = sys.argv[1]

def files(root):
    found = {}
    for path, _, names in os.walk(root):
        for name in names:
            file = os.path.join(path, name)
            if not os.path.islink(file):
                found[os.path.relpath(file, root)] = file
    return found

def content(path):
    with open(path, 'rb') as file:
        return file.read()

old, new = files(f'{work}/old/usr'), files(f'{work}/new/usr')
changed = [file for name, file in new.items() if name not in old or content(old[name]) != content(file)]
bytes_changed = sum(os.path.getsize(file) for file in changed)
result = {'files': len(new), 'changed_files': len(changed), 'changed_bytes': bytes_changed}
for way, image in [('build_like', 'like'), ('update', 'updated')]:
    differing = 0
    with open(f'{work}/old.img', 'rb') as one, open(f'{work}/{image}.img', 'rb') as other:
        while piece := one.read(4096):
            differing += 4096 * (piece != other.read(4096))
    result[way] = {'differing_bytes': differing, 'of_changed_bytes': round(differing / bytes_changed, 2)}
print(json.dumps(result))
END
