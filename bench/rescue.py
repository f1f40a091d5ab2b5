#!/usr/bin/env python3
"""How many deleted files come back? extant rescue beside ext4magic and extundelete.

    bench/rescue.py [LATER...]      numbers of files that are written after the deletion; default: 0 50 500

The kernel's ext4 creates FILES files with random names and contents of 1 byte to MAX_KB KiB, in 20 directories, and deletes
them. Then it writes LATER other files. Each program gets a copy of the unmounted image. A file counts as right if its bytes
are those that were deleted, under any name; as wrong if the bytes are those of no deleted file. For extant, files of high
confidence are counted as well. Needs root, ext4magic and extundelete (packages of the same names).

    FILES=1000, MAX_KB=64, SIZE=512M    the load, and the size of the image
    WORK=/dev/shm                       where the images go
    EXTANT=PATH                         the binary; else target/release/extant
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = int(os.environ.get("FILES", "1000"))
MAX_KB = int(os.environ.get("MAX_KB", "64"))
SIZE = os.environ.get("SIZE", "512M")
WORK = os.environ.get("WORK", "/dev/shm")
EXTANT = os.path.abspath(os.environ.get("EXTANT", "target/release/extant"))


def run(*command, **more):
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **more)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(work, later):
    """The image, the digests of the deleted files, and the time of the deletion."""
    image, point = work / "image", work / "point"
    point.mkdir()
    run("mke2fs", "-q", "-F", "-t", "ext4", str(image), SIZE)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        dice, deleted, paths = random.Random(later), set(), []
        for number in range(FILES):
            folder = point / f"d{number % 20}"
            folder.mkdir(exist_ok=True)
            path = folder / f"{dice.randrange(1 << 40):x}"
            path.write_bytes(dice.randbytes(dice.randrange(1, MAX_KB << 10)))
            deleted.add(digest(path))
            paths.append(path)
        run("sync", "-f", str(point))
        # extundelete and ext4magic search by time, in whole seconds.
        run("sleep", "1.1")
        since = int(run("date", "+%s").stdout)
        for path in paths:
            path.unlink()
        run("sync", "-f", str(point))
        for number in range(later):
            (point / f"later-{number}").write_bytes(dice.randbytes(dice.randrange(1, MAX_KB << 10)))
    finally:
        run("umount", str(point))
    return image, deleted, since


def score(name, files, deleted, note=""):
    digests = [digest(file) for file in files if file.is_file() and not file.is_symlink()]
    right = len(deleted & set(digests))
    wrong = sum(value not in deleted for value in digests)
    print(f"{name:18} {right:6} {100 * right / len(deleted):6.1f} % {wrong:8}  {note}", flush=True)


def main():
    for later in [int(word) for word in sys.argv[1:]] or [0, 50, 500]:
        work = Path(tempfile.mkdtemp(dir=WORK, prefix="extant-rescue-"))
        try:
            image, deleted, since = make(work, later)
            print(f"{FILES} deleted files, then {later} written\n{'':18}  right                wrong")
            out = work / "extant"
            found = json.loads(run(EXTANT, "rescue", "-d", "--json", str(image), "--dir", str(out)).stdout)
            high = [out / one["path"] for one in found if one["confidence"] == "high"]
            score("extant", [path for path in out.rglob("*")], deleted)
            score("extant, high", high, deleted)
            for name, command in (
                ("ext4magic", ["ext4magic", "{}", "-M", "-d", "{out}"]),
                ("ext4magic -R", ["ext4magic", "{}", "-R", "-a", str(since - 1), "-d", "{out}"]),
                ("extundelete", ["extundelete", "--restore-all", "{}"]),
            ):
                copy, place = work / "copy", work / name.replace(" ", "")
                shutil.copy(image, copy)
                place.mkdir()
                words = [word.replace("{}", str(copy)).replace("{out}", str(place)) for word in command]
                done = run(*words, cwd=place)
                score(name, list(place.rglob("*")), deleted, "" if done.returncode == 0 else f"exit {done.returncode}")
        finally:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
