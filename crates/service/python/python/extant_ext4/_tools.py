"""mkfs, check, resize and repair."""

from __future__ import annotations

import uuid as _uuid
from dataclasses import dataclass
from typing import Callable, Optional, Union

from . import _native
from ._types import HostPath, Image, UuidLike, host_path, image_of, uuid_bytes

#: Called with the name of a pass or step, and the number of its units: done, and in total. False cancels.
CheckProgress = Callable[[str, int, int], Optional[bool]]


@dataclass(frozen=True)
class MkfsReport:
    """What ``mkfs`` made."""

    block_size: int
    blocks: int
    blocks_free: int
    inodes: int
    groups: int
    uuid: _uuid.UUID


def mkfs(
    image: HostPath,
    size: int,
    *,
    label: str = "",
    features: Optional[str] = None,
    block_size: Optional[int] = None,
    inode_size: Optional[int] = None,
    inodes: Optional[int] = None,
    reserved_percent: Optional[float] = None,
    uuid: Optional[UuidLike] = None,
    replace: bool = False,
    progress: Optional[CheckProgress] = None,
) -> MkfsReport:
    """Makes an empty file system in a new file of ``size`` bytes, as mke2fs does.

    The file is sparse. ``features`` is a list as for mke2fs: ``"quota,^has_journal"``. ``progress`` is called
    as by :func:`check`. If it returns False, InterruptedError is raised, and there is no new file.

    >>> mkfs("empty.img", 64 << 20, label="scratch").blocks
    16384
    """
    options = {
        "label": label,
        "features": features,
        "block_size": block_size,
        "inode_size": inode_size,
        "inodes": inodes,
        "reserved_percent": reserved_percent,
        "uuid": uuid_bytes(uuid),
        "replace": replace,
    }
    made = _native.mkfs(host_path(image), size, options, progress)
    made["uuid"] = _uuid.UUID(bytes=bytes(made["uuid"]))
    return MkfsReport(**made)


@dataclass(frozen=True)
class Finding:
    """A broken rule, and its place. What is not known of the place is None."""

    #: Permanent code, "IN007": ``extant check --explain IN007`` says more.
    code: str
    #: "note" (the file system is valid), "error", or "fatal" (parts could not be checked).
    severity: str
    #: What was found, with the numbers.
    message: str
    #: The rule, as it holds for a valid file system.
    rule: str
    ino: Optional[int] = None
    block: Optional[int] = None
    group: Optional[int] = None
    #: Name of a directory entry or attribute.
    name: Optional[str] = None
    #: The number in the image and the right one, if the rule compares numbers.
    stored: Optional[int] = None
    expected: Optional[int] = None


@dataclass(frozen=True)
class CheckStats:
    """What a check saw."""

    inodes: int
    directories: int
    inodes_total: int
    blocks: int
    blocks_used: int
    block_size: int
    #: The journal needed a replay; the check saw the state after it.
    replayed: bool
    read_bytes: int
    seconds: float


@dataclass(frozen=True)
class CheckReport:
    """The result of a check."""

    #: There is no finding above "note".
    clean: bool
    #: By code and place; at most 1000 of a code.
    findings: tuple[Finding, ...]
    #: The number of findings of each code.
    counts: dict[str, int]
    stats: CheckStats
    #: As of e2fsck: 0 clean, 4 errors, 8 no usable superblock.
    exit_code: int


def check(
    image: Image,
    offset: int = 0,
    size: Optional[int] = None,
    *,
    threads: Optional[int] = None,
    progress: Optional[CheckProgress] = None,
) -> CheckReport:
    """Checks all structures of a file system on all cores, and writes nothing.

    Damage is in the report, and raises no exception. ``progress`` is called with the name of the pass and
    the number of its steps, done and in total: at the start, about 10 times a second, and at the end. If it
    returns False, the check is cancelled and raises InterruptedError.

    >>> for finding in check("a.img").findings:
    ...     print(finding.code, finding.message)
    """
    report = _native.check(image_of(image), offset, size, threads, progress)
    report["findings"] = tuple(Finding(**finding) for finding in report["findings"])
    report["stats"] = CheckStats(**report["stats"])
    return CheckReport(**report)


@dataclass(frozen=True)
class ResizeReport:
    """Sizes in bytes before and after, and the numbers of blocks and inodes that moved."""

    before: int
    after: int
    moved_blocks: int
    moved_inodes: int


def resize(
    image: HostPath, size: Union[int, str], *, progress: Optional[CheckProgress] = None
) -> ResizeReport:
    """Grows or shrinks a file system that is not mounted, and its image file.

    ``size`` is a number of bytes, "min" for the smallest size, or "max" for all of a device. With a journal a
    power cut at any moment is harmless, and the same call continues. ``progress`` is called as by
    :func:`check`. If it returns False, the resize ends after the present step with InterruptedError: then the
    file system is valid, and the same call continues.

    >>> resize("a.img", 1 << 30).after
    1073741824
    """
    return ResizeReport(*_native.resize(host_path(image), size, progress))


@dataclass(frozen=True)
class Fix:
    """A change of a repair."""

    code: str
    severity: str
    message: str
    #: What the repair does.
    remedy: str
    #: What becomes unreachable, or None.
    loss: Optional[str] = None
    ino: Optional[int] = None
    block: Optional[int] = None
    group: Optional[int] = None
    name: Optional[str] = None


@dataclass(frozen=True)
class Left:
    """A finding that a repair leaves, and the reason."""

    finding: Finding
    why: str


@dataclass(frozen=True)
class RepairReport:
    """What a repair did, or would do."""

    #: The fixes; at most 1000 of a code, and all with a loss.
    fixes: tuple[Fix, ...]
    #: Findings that stay.
    left: tuple[Left, ...]
    #: The number of all fixes.
    total: int
    changed_bytes: int


def repair(
    image: HostPath,
    undo: Optional[HostPath] = None,
    *,
    dry_run: bool = False,
    progress: Optional[CheckProgress] = None,
) -> RepairReport:
    """Repairs a file system that is not mounted.

    The old bytes are saved in the file ``undo``, from which ``extant undo`` restores them. ``dry_run`` plans
    the repair and writes nothing. ``progress`` is called as by :func:`check`; a repair consists of several
    checks. If it returns False before the repair is written, nothing is written, and InterruptedError is
    raised.

    >>> repair("a.img", dry_run=True).fixes
    ()
    """
    report = _native.repair(
        host_path(image), None if undo is None else host_path(undo), dry_run, progress
    )
    report["fixes"] = tuple(Fix(**fix) for fix in report["fixes"])
    report["left"] = tuple(Left(Finding(**finding), why) for finding, why in report["left"])
    return RepairReport(**report)
