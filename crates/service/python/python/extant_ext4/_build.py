"""Building images from directories, archives and container images."""

from __future__ import annotations

import uuid as _uuid
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

from . import _native
from ._types import HostPath, UuidLike, host_path, image_of, uuid_bytes


@dataclass(frozen=True)
class Progress:
    """How far a build is."""

    #: "reading", "planning" or "writing".
    step: str
    #: Entries of sources that were read.
    entries: int
    #: Bytes of contents that were written, and all of them.
    bytes: int
    total_bytes: int
    #: Files that were written, and all of them.
    files: int
    total_files: int


@dataclass(frozen=True)
class BuildReport:
    """What a build made."""

    #: Length of the image.
    image_bytes: int
    #: Bytes that were written to the image.
    written_bytes: int
    #: Size of all files together.
    content_bytes: int
    #: Regular files; several names of one count once.
    files: int
    directories: int
    symlinks: int
    #: Devices, fifos and sockets.
    others: int
    #: Additional names of files.
    extra_links: int
    uuid: _uuid.UUID
    #: Findings to show.
    warnings: tuple[str, ...]


class Builder:
    """Makes an image of sources; later ones are on top of earlier ones.

    The same sources and options make the same bytes.

    >>> report = Builder(headroom=20).add_dir("rootfs").add_tar("overlay.tar.zst").write("a.img")
    >>> report.files
    2

    ``size`` is the size of the image in bytes; by default it is the smallest one, and ``headroom`` percent
    more. ``features`` is a list as for mke2fs: ``"^has_journal,quota"``. ``time`` is the time stamp of the
    file system, and no time of a file is later than ``clamp_mtime`` (seconds since 1970). ``owner`` gives
    everything to (uid, gid); ``uid_map`` and ``gid_map`` are lists of ``"FROM:TO:COUNT"``. ``exclude`` has
    names (``*.o``) and paths (``/var/cache``). ``xattrs=False`` leaves out extended attributes,
    ``keep_times`` keeps access, change and birth times. ``threads`` is one per core by default.
    """

    def __init__(
        self,
        size: Optional[int] = None,
        headroom: float = 0,
        label: Optional[str] = None,
        *,
        uuid: Optional[UuidLike] = None,
        features: Optional[str] = None,
        block_size: Optional[int] = None,
        inode_size: Optional[int] = None,
        inodes: Optional[int] = None,
        reserved_percent: Optional[float] = None,
        time: Optional[int] = None,
        clamp_mtime: Optional[int] = None,
        keep_times: bool = False,
        owner: Optional[tuple[int, int]] = None,
        uid_map: Iterable[str] = (),
        gid_map: Iterable[str] = (),
        exclude: Iterable[str] = (),
        xattrs: bool = True,
        one_file_system: bool = False,
        tolerate_changes: bool = False,
        threads: Optional[int] = None,
    ) -> None:
        self._sources: list[tuple[str, Any, Optional[str]]] = []
        self._options: dict[str, Any] = {
            "size": size,
            "headroom": float(headroom),
            "label": label,
            "uuid": uuid_bytes(uuid),
            "features": features,
            "block_size": block_size,
            "inode_size": inode_size,
            "inodes": inodes,
            "reserved_percent": reserved_percent,
            "time": time,
            "clamp_mtime": clamp_mtime,
            "keep_times": keep_times,
            "owner": owner,
            "uid_map": list(uid_map),
            "gid_map": list(gid_map),
            "exclude": list(exclude),
            "xattrs": xattrs,
            "one_file_system": one_file_system,
            "tolerate_changes": tolerate_changes,
            "threads": threads,
        }

    def add_dir(self, path: HostPath) -> Builder:
        """Adds what is in a directory."""
        self._sources.append(("dir", host_path(path), None))
        return self

    def add_tar(self, archive: Any) -> Builder:
        """Adds a tar archive (plain, gzip, zstd, xz): a path, or a binary file object, which is read once."""
        self._sources.append(("tar", image_of(archive), None))
        return self

    def add_oci(self, path: HostPath, ref: Optional[str] = None) -> Builder:
        """Adds all layers of a container image: a directory or archive in OCI layout, or from docker save.
        ``ref`` is a tag or digest, if there are several images."""
        self._sources.append(("oci", host_path(path), ref))
        return self

    def write(
        self,
        image: HostPath,
        progress: Optional[Callable[[Progress], Optional[bool]]] = None,
        *,
        replace: bool = False,
        sync: bool = True,
        dry_run: bool = False,
    ) -> BuildReport:
        """Makes the image. It appears under its name when it is complete.

        ``progress`` is called at the start, about 10 times a second, and at the end. The build is cancelled
        if it raises an exception, which ``write`` raises then, or returns False: then ``write`` raises
        InterruptedError. ``sync=False`` does not wait until the image is durable.
        """
        options = {**self._options, "replace": replace, "sync": sync, "dry_run": dry_run}
        report = None if progress is None else lambda *counters: progress(Progress(*counters))
        done = _native.build(host_path(image), self._sources, options, report)
        done["uuid"] = _uuid.UUID(bytes=bytes(done["uuid"]))
        done["warnings"] = tuple(done["warnings"])
        return BuildReport(**done)
