#!/usr/bin/env python3
"""What does an fsync cost with fast commits and without, beside the kernel's ext4?

    bench/fast_commit.py

Each load runs COUNT times on a new file system, once with the feature fast_commit and once without, through a
mount of extant and on a loop mount of the kernel, alternately in ROUNDS rounds. The table has operations per
second (medians), and KiB written to the image per operation: by the server process, or to the loop device.
One JSON object goes to stdout.

    new       create a file, write 4 KiB, fsync
    append    append 4 KiB to one file, fsync
    empty     create a file, fsync
    replace   write a new file, fsync, rename it over another, fsync of the directory

    COUNT=2000, ROUNDS=5     the load
    WORK=/dev/shm            where the images go; a directory on a disk shows what flushes cost there
    EXTANT=PATH              the command; else target/release/extant

Needs root.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT = int(os.environ.get("COUNT", "2000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WORK = os.environ.get("WORK", "/dev/shm")
EXTANT = os.environ.get("EXTANT", "target/release/extant")
PIECE = b"x" * 4096
FEATURES = {"fast": "fast_commit", "full": "^fast_commit"}


def written(fd, data):
    while data:
        data = data[os.write(fd, data):]


def synced_file(path, data):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    written(fd, data)
    os.fsync(fd)
    os.close(fd)


def new(top, at):
    synced_file(f"{top}/{at:06}", PIECE)


def append(top, _at):
    synced_file(f"{top}/log", PIECE)


def empty(top, at):
    synced_file(f"{top}/{at:06}", b"")


def replace(top, _at):
    synced_file(f"{top}/new", PIECE)
    os.rename(f"{top}/new", f"{top}/old")
    fd = os.open(top, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


LOADS = {"new": new, "append": append, "empty": empty, "replace": replace}


class Extant:
    """A mount of extant."""

    def __init__(self, image, top):
        self.top = top
        command = [EXTANT, "mount", image, top, "-o", "rw", "--foreground"]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.ismount(top):
            if self.server.poll() is not None:
                sys.exit("the mount failed")
            time.sleep(0.02)

    def bytes_written(self):
        lines = Path(f"/proc/{self.server.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    def close(self):
        subprocess.run([EXTANT, "umount", self.top], check=True)
        self.server.wait()


class Kernel:
    """A loop mount."""

    def __init__(self, image, top):
        self.top = top
        output = subprocess.run(["losetup", "-f", "--show", image], check=True, capture_output=True)
        self.loop = output.stdout.decode().strip()
        subprocess.run(["mount", "-t", "ext4", self.loop, top], check=True)

    def bytes_written(self):
        fields = Path(f"/sys/block/{Path(self.loop).name}/stat").read_text().split()
        return int(fields[6]) * 512

    def close(self):
        subprocess.run(["umount", self.top], check=True)
        subprocess.run(["losetup", "-d", self.loop], check=True)


def measured(side, features, load, work):
    image, top = f"{work}/image", f"{work}/top"
    os.makedirs(top, exist_ok=True)
    if os.path.exists(image):
        os.unlink(image)
    made = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-O", features, image, "1G"]
    subprocess.run(made, check=True, capture_output=True)
    mount = side(image, top)
    try:
        # The first commit contains what the mount itself changes.
        synced_file(f"{top}/old", PIECE)
        if side is Kernel:
            os.sync()
        before, begun = mount.bytes_written(), time.perf_counter()
        for at in range(COUNT):
            load(top, at)
        seconds, wrote = time.perf_counter() - begun, mount.bytes_written() - before
    finally:
        mount.close()
    subprocess.run(["e2fsck", "-fn", image], check=True, capture_output=True)
    return COUNT / seconds, wrote / COUNT / 1024


def main():
    if os.geteuid() != 0:
        sys.exit("fast_commit.py: needs root, for loop mounts")
    sides = {"extant": Extant, "kernel": Kernel}
    work = tempfile.mkdtemp(dir=WORK)
    results = {}
    try:
        for name, load in LOADS.items():
            runs = {(side, kind): [] for side in sides for kind in FEATURES}
            for _ in range(ROUNDS):
                for side, kind in runs:
                    runs[side, kind].append(measured(sides[side], FEATURES[kind], load, work))
            for (side, kind), of in runs.items():
                rate = statistics.median(rate for rate, _ in of)
                kib = statistics.median(kib for _, kib in of)
                results[f"{name}/{side}/{kind}"] = {"per_s": round(rate), "kib": round(kib, 1)}
                print(f"{name:8} {side:7} {kind:5} {rate:9.0f}/s {kib:7.1f} KiB", file=sys.stderr)
            for side in sides:
                fast, full = (results[f"{name}/{side}/{kind}"]["per_s"] for kind in FEATURES)
                print(f"{name:8} {side:7} fast/full {fast / full:5.2f}", file=sys.stderr)
    finally:
        shutil.rmtree(work)
    print(json.dumps({"count": COUNT, "rounds": ROUNDS, "work": WORK, "results": results}))


if __name__ == "__main__":
    main()
