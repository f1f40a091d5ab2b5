"""ext4 in user space: read, change, build, check, resize and repair ext2, ext3 and ext4 images.

Without root, without mounting and without the kernel's ext4 driver.

>>> import extant_ext4
>>> extant_ext4.Builder(headroom=20).add_dir("rootfs").write("root.img").files
2
>>> with extant_ext4.open("root.img") as fs:
...     fs["/etc/motd"].read_text()
'hello\\n'
>>> extant_ext4.check("root.img").clean
True

``open`` is named as the built-in function: use the module's name, and no ``from extant_ext4 import *``.
"""

from ._build import Builder, BuildReport, Progress
from ._fs import FileSystem, Xattrs, open
from ._native import CorruptError, OpenError, Stat, __version__
from ._path import Path
from ._tools import (
    CheckReport,
    CheckStats,
    Finding,
    Fix,
    Left,
    MkfsReport,
    RepairReport,
    ResizeReport,
    check,
    mkfs,
    repair,
    resize,
)

__all__ = [
    "BuildReport",
    "Builder",
    "CheckReport",
    "CheckStats",
    "CorruptError",
    "FileSystem",
    "Finding",
    "Fix",
    "Left",
    "MkfsReport",
    "OpenError",
    "Path",
    "Progress",
    "RepairReport",
    "ResizeReport",
    "Stat",
    "Xattrs",
    "__version__",
    "check",
    "mkfs",
    "open",
    "repair",
    "resize",
]
