#!/usr/bin/env python3
"""How fast is the Python package, beside Rust?

    bench/python.py

Reads FILES small files of an image through `fs.scan` and through `read_bytes` of each path, and the same with
the example `read_all` of the library. Builds the image with `Builder` and with `extant build`. Each pair runs
alternately ROUNDS times in fresh processes; a figure is the ratio of the medians. The time of the command
includes its start, that of `Builder` not the start of Python. Exits with 1 if Python reads at less than half
of the rate of Rust, or if `Builder` takes more than 1.05 times as long as the command.

    FILES=50000, BYTES=3000, ROUNDS=5    the load
    WORK=/dev/shm                        where tree and images go
    EXTANT=PATH                          the command; else target/release/extant
    READ_ALL=PATH                        the example; else target/release/examples/read_all

Needs the package in this Python (`pip install` of a wheel that `maturin build --release` made), and:

    cargo build --release -p extant-cli && cargo build --release -p extant --example read_all
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = int(os.environ.get("FILES", "50000"))
BYTES = int(os.environ.get("BYTES", "3000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WORK = os.environ.get("WORK", "/dev/shm")
EXTANT = os.environ.get("EXTANT", "target/release/extant")
READ_ALL = os.environ.get("READ_ALL", "target/release/examples/read_all")

READ = """
import sys, time, extant_ext4
fs = extant_ext4.open(sys.argv[1])
files = size = 0
if sys.argv[2] == "walk":
    begun = time.perf_counter()
    for path, stat, data in fs.scan():
        if data is not None:
            files, size = files + 1, size + len(data)
else:
    paths = [path for path, stat, _ in fs.scan(contents=False) if stat.st_mode & 0o170000 == 0o100000]
    fs.close()
    fs = extant_ext4.open(sys.argv[1])
    begun = time.perf_counter()
    for path in paths:
        data = fs[path].read_bytes()
        files, size = files + 1, size + len(data)
print(files, size, time.perf_counter() - begun)
"""

BUILD = """
import sys, time, extant_ext4
begun = time.perf_counter()
extant_ext4.Builder().add_dir(sys.argv[1]).write(sys.argv[2], replace=True, sync=False)
print(0, 0, time.perf_counter() - begun)
"""

COMMAND = """
import subprocess, sys, time
begun = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(0, 0, time.perf_counter() - begun)
"""


def seconds(command, expected=None):
    """The time that a program prints, after the files and bytes that it read."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    files, size, taken = done.stdout.split()
    if expected is not None and (int(files), int(size)) != expected:
        sys.exit(f"{command}: {files} files of {size} bytes, expected {expected}")
    return float(taken)


def compare(what, python, rust, bar, expected=None):
    """Prints one row; returns whether Python is within the bar, as a part of Rust's rate."""
    both = [(seconds(python, expected), seconds(rust, expected)) for _ in range(ROUNDS + 1)][1:]
    ours, theirs = (statistics.median(column) for column in zip(*both))
    ratio = theirs / ours
    verdict = "" if ratio >= bar else f"   below {bar:.2f}"
    times = f"Python {ours:7.3f} s   Rust {theirs:7.3f} s"
    print(f"{what:30} {times}   rate {ratio:5.2f} of Rust's{verdict}", flush=True)
    return ratio >= bar


def main():
    work = Path(tempfile.mkdtemp(dir=WORK, prefix="extant-python-"))
    try:
        tree, image = work / "tree", str(work / "a.img")
        for number in range(FILES):
            directory = tree / str(number // 500)
            if number % 500 == 0:
                directory.mkdir(parents=True)
            (directory / f"{number}.txt").write_bytes(number.to_bytes(8, "little") * (BYTES // 8))
        build = [EXTANT, "build", "-q", "-f", "--no-sync", "-o", image, "--from", str(tree)]
        fine = compare(
            "build",
            [sys.executable, "-c", BUILD, str(tree), image],
            [sys.executable, "-c", COMMAND, *build],
            1 / 1.05,
        )
        expected = (FILES, FILES * (BYTES // 8 * 8))
        for what, how in (("read all files by a walk", "walk"), ("read all files path by path", "paths")):
            python = [sys.executable, "-c", READ, image, how]
            fine &= compare(what, python, [READ_ALL, image, how], 0.5, expected)
    finally:
        shutil.rmtree(work)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
