#!/usr/bin/env python3
"""How much memory does a mount take? The peak of each step beside its `--cache`.

    bench/memory.py [CACHE...]      8M and 64M if none is given

Creates FILES files of 4 KiB, writes a file of SIZE_MB, walks the tree, reads the file, makes the kernel forget all inodes,
and walks the tree again. Prints the peak of resident memory (VmHWM) in each step, and what is left after it. Exits with 1 if
a peak is above the cache and 48 MiB. Needs root: the kernel forgets inodes for root only.

    FILES=150000, SIZE_MB=900    the load
    WORK=/dev/shm                where the image goes
    EXTANT=PATH                  the binary; else target/release/extant
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = int(os.environ.get("FILES", "150000"))
SIZE_MB = int(os.environ.get("SIZE_MB", "900"))
WORK = os.environ.get("WORK", "/dev/shm")
EXTANT = os.environ.get("EXTANT", "target/release/extant")
# Beside the cache: program, threads' stacks, buffers of requests, and what the allocator cannot return.
BESIDE_MB = 48


class Mount:
    """A mount in the foreground, whose memory is looked at."""

    def __init__(self, image, point, cache):
        self.point, self.cache, self.peaks = point, cache, []
        command = [EXTANT, "mount", "-f", "-o", "rw", "--cache", cache, image, point]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.server.stdout.readline()

    def step(self, name, work):
        proc = Path("/proc") / str(self.server.pid)
        (proc / "clear_refs").write_text("5")
        start = time.monotonic()
        work()
        seconds = time.monotonic() - start
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        peak, left = (int(status[key].split()[0]) // 1024 for key in ("VmHWM", "VmRSS"))
        print(f"{self.cache:>6}  {name:<12} peak {peak:4} MiB   after it {left:4} MiB  {seconds:6.1f} s", flush=True)
        self.peaks.append(peak)

    def end(self):
        subprocess.run([EXTANT, "umount", self.point], check=True)
        self.server.wait()


def create(point):
    for number in range(FILES):
        folder = f"{point}/d{number // 1000}"
        if number % 1000 == 0:
            os.mkdir(folder)
        file = os.open(f"{folder}/f{number}", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x" * 4096)
        os.close(file)


def write(path):
    with open(path, "wb", 0) as file:
        for _ in range(SIZE_MB):
            file.write(b"y" * (1 << 20))


def read(path):
    with open(path, "rb", 0) as file:
        while file.read(1 << 20):
            pass


def forget():
    Path("/proc/sys/vm/drop_caches").write_text("2")
    # The kernel sends its FORGETs afterwards.
    time.sleep(3)


def walk(point):
    subprocess.run(["find", point, "-size", "-1000", "-printf", ""], check=True)


def measure(cache):
    with tempfile.TemporaryDirectory(dir=WORK, prefix="extant-memory-") as scratch:
        image, point = f"{scratch}/image", f"{scratch}/mnt"
        os.mkdir(point)
        size = f"{SIZE_MB * 2 + FILES // 100 + 64}M"
        subprocess.run(["mkfs.ext4", "-qF", "-N", str(FILES * 2 + 5000), image, size], check=True, capture_output=True)
        mount = Mount(image, point, cache)
        try:
            mount.step("create", lambda: create(point))
            mount.step("write", lambda: write(f"{point}/big"))
            mount.step("walk", lambda: walk(point))
            mount.step("read", lambda: read(f"{point}/big"))
            mount.step("forget", forget)
            mount.step("walk again", lambda: walk(point))
        finally:
            mount.end()
        subprocess.run(["e2fsck", "-fn", image], check=True, capture_output=True)
    return max(mount.peaks)


def main():
    is_over = False
    for cache in sys.argv[1:] or ["8M", "64M"]:
        allowed = int(cache.removesuffix("M")) + BESIDE_MB
        peak = measure(cache)
        is_over |= peak > allowed
        print(f"{cache:>6}  peak {peak} MiB of {allowed} MiB", flush=True)
    sys.exit(is_over)


main()
