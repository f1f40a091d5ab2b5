"""An open file system."""

from __future__ import annotations

import atexit
import os
import stat as _stat
import uuid as _uuid
import warnings
import weakref
from types import TracebackType
from typing import Any, Callable, Iterator, MutableMapping, Optional

from . import _native
from ._file import RawFile, parse_mode, wrap
from ._path import Path, PathLike, normal, text
from ._types import Image, image_of

#: Open file systems. At exit they are closed while threads still can take the interpreter's lock.
_all_open: weakref.WeakSet[FileSystem] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for fs in list(_all_open):
        try:
            fs.close()
        except Exception as error:  # noqa: BLE001 the interpreter is shutting down
            warnings.warn(f"{fs!r} was not closed: {error}", ResourceWarning, stacklevel=1)


def open(
    image: Image,
    writable: bool = False,
    offset: int = 0,
    size: Optional[int] = None,
    *,
    no_recovery: bool = False,
    cache_bytes: int = 0,
) -> FileSystem:
    """Opens an ext2, ext3 or ext4 file system.

    ``image`` is the path of a file or block device, or a seekable binary file object: anything with
    ``seek`` and ``read``, and ``write`` if ``writable``. ``offset`` and ``size`` select a part of it, such as
    a partition. An image that is opened for reading is never written.

    ``no_recovery`` ignores the journal and shows what is in place. ``cache_bytes`` limits the memory of
    caches (64 MiB by default).

    >>> with extant_ext4.open("a.img") as fs:
    ...     fs["/etc/motd"].read_bytes()
    b'hello\\n'
    >>> with extant_ext4.open("a.img", writable=True) as fs:
    ...     fs["/etc/issue"].write_text("welcome\\n")
    8
    """
    where = image_of(image)
    native = _native.open(where, writable, offset, size, no_recovery, cache_bytes)
    return FileSystem(native, where if isinstance(where, str) else repr(image))


class FileSystem:
    """An open file system; ``open`` makes it. Any number of threads may use one.

    >>> fs["/etc"] == fs / "etc"
    True
    """

    def __init__(self, native: _native.FileSystem, name: str) -> None:
        self._native = native
        self._name = name
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        _all_open.add(self)

    def __repr__(self) -> str:
        return f"<extant_ext4.FileSystem of {self._name}{' (closed)' if self.closed else ''}>"

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        if native is not None and not native.closed:
            writable = native.writable
            if writable:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    # The whole.

    @property
    def closed(self) -> bool:
        return self._native.closed

    @property
    def writable(self) -> bool:
        """Whether it is open for writing."""
        return self._native.writable

    @property
    def label(self) -> str:
        return str(self._native.info()["label"])

    @property
    def uuid(self) -> _uuid.UUID:
        return _uuid.UUID(bytes=self._native.info()["uuid"])

    @property
    def recovered(self) -> bool:
        """Whether the journal needed a replay when the file system was opened."""
        return bool(self._native.info()["recovery_needed"])

    def close(self) -> None:
        """Makes all changes durable, and closes the file system with all files that are open in it."""
        if not self._native.closed:
            try:
                for file in list(self._files):
                    file.close()
            finally:
                self._native.close()
        _all_open.discard(self)

    def sync(self) -> None:
        """Makes all changes durable, except what is still in the buffers of open files."""
        self._native.sync()

    def trim(self, min_bytes: int = 0) -> Optional[int]:
        """Discards free blocks in runs of at least ``min_bytes``. Returns the number of bytes, or None if
        the device cannot discard."""
        return self._native.trim(min_bytes)

    def statfs(self) -> os.statvfs_result:
        """Total and free space and inodes, as ``os.statvfs``."""
        return os.statvfs_result(self._native.statfs())

    # Paths.

    def path(self, path: PathLike = "/") -> Path:
        return Path(self, path)

    def __getitem__(self, path: PathLike) -> Path:
        return Path(self, path)

    def __truediv__(self, path: PathLike) -> Path:
        return Path(self, path)

    def __contains__(self, path: PathLike) -> bool:
        return Path(self, path).exists()

    __iter__ = None  # otherwise iteration would look up paths 0, 1, 2, ...

    def open(
        self,
        path: PathLike,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        on_close: Optional[Callable[[], object]] = None,
    ) -> Any:
        """Opens a file of the image, as the built-in ``open``. Text is UTF-8 by default.

        A new file belongs to root and has mode 0644. ``on_close`` is called after the file was closed.

        >>> with fs.open("/etc/motd") as file:
        ...     file.readline()
        'hello\\n'
        """
        kind, is_text = parse_mode(mode)
        name = normal(text(path))
        create = kind[0] in "wax"
        native = self._native.open_file(name, create, kind[0] == "x", kind[0] == "w", 0o644)
        if kind != "r" and not create and not self.writable:
            native.close()
            raise OSError(30, os.strerror(30), name)
        raw = RawFile(native, name, kind, self, on_close)
        file = wrap(raw, kind, is_text, buffering, encoding, errors, newline)
        self._files.add(file)
        return file

    def rmtree(self, path: PathLike) -> None:
        """Removes a directory with all that is below it. Symbolic links are removed, not followed."""
        self._native.rmtree(normal(text(path)))

    # Trees.

    def _entries(self, path: str) -> Iterator[tuple[str, int, int]]:
        """Name, type (0 if unknown) and inode number of a directory's entries."""
        listing = self._native.listing(path)
        while True:
            piece = listing.piece()
            if not piece:
                return
            yield from piece

    def walk(
        self,
        top: PathLike = "/",
        topdown: bool = True,
        onerror: Optional[Callable[[OSError], object]] = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``: yields (path, names of directories, names of other files) for each directory.

        The caller may change the list of directories of a walk from the top. Errors are ignored unless there
        is ``onerror``.

        >>> for directory, dirs, files in fs.walk("/etc"):
        ...     print(directory, dirs, files)
        /etc ['network'] ['motd']
        /etc/network [] ['interfaces']
        """
        start = normal(text(top))
        # Post-order needs a second visit of each directory.
        pending: list[tuple[str, Optional[tuple[list[str], list[str]]]]] = [(start, None)]
        seen: set[int] = set()
        while pending:
            path, ready = pending.pop()
            if ready is not None:
                yield path, *ready
                continue
            try:
                ino = self._native.stat(path, True).st_ino
                if ino in seen:
                    # A loop of symbolic links, or a damaged image.
                    raise OSError(40, "the walk has been in this directory already", path)
                seen.add(ino)
                dirs, files, links = self._sorted_out(path)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield path, dirs, files
            else:
                pending.append((path, (dirs, files)))
            base = path.rstrip("/")
            below = [f"{base}/{name}" for name in dirs if followlinks or name not in links]
            pending.extend((directory, None) for directory in reversed(below))

    def _sorted_out(self, path: str) -> tuple[list[str], list[str], set[str]]:
        """Names of directories, of other files, and those of the directories that are links."""
        dirs: list[str] = []
        files: list[str] = []
        links: set[str] = set()
        base = path.rstrip("/")
        for name, kind, _ino in self._entries(path):
            if not kind:
                kind = _stat.S_IFMT(self._native.stat(f"{base}/{name}", False).st_mode)
            if kind == _stat.S_IFLNK:
                try:
                    target = self._native.mode(f"{base}/{name}", True)
                except OSError:
                    target = None
                if target is not None and _stat.S_ISDIR(target):
                    kind = _stat.S_IFDIR
                    links.add(name)
            (dirs if kind == _stat.S_IFDIR else files).append(name)
        return dirs, files, links

    def scan(
        self,
        top: PathLike = "/",
        contents: bool = True,
        *,
        max_bytes: Optional[int] = 64 << 20,
        sort: bool = False,
        onerror: Optional[Callable[[OSError], object]] = None,
    ) -> Iterator[tuple[str, _native.Stat, Optional[bytes]]]:
        """Iterates over a whole tree: (path, attributes, content). The fastest way to read many files.

        Threads read directories, attributes and contents ahead; neighbouring small files are read together.
        ``top`` comes first and a directory comes before what is in it. With ``sort`` the names of a directory
        are in order.

        The content is ``bytes``: of a file, or the target of a symbolic link. It is None for everything else,
        for files larger than ``max_bytes``, and without ``contents``.

        An error ends the iteration, unless there is ``onerror``: it is called, and the iteration goes on.

        >>> for path, stat, data in fs.scan("/etc", sort=True):
        ...     print(path, stat.st_size, data)
        /etc 4096 None
        /etc/motd 6 b'hello\\n'
        """
        return self._rows(self._native.scan(normal(text(top)), contents, max_bytes, sort, onerror))

    def _rows(self, scan: _native.Scan) -> Iterator[tuple[str, _native.Stat, Optional[bytes]]]:
        """The rows of a scan. The generator keeps this object, which closes the scan when it is deleted."""
        yield from scan


class Xattrs(MutableMapping[str, bytes]):
    """The extended attributes of a file, or of a symbolic link itself: ``path.xattrs``.

    >>> path.xattrs["user.origin"] = b"template"
    >>> dict(path.xattrs)
    {'user.origin': b'template'}
    """

    __slots__ = ("_fs", "_path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def _all(self) -> dict[str, bytes]:
        return dict(self._fs._native.xattrs(self._path))

    def __getitem__(self, name: str) -> bytes:
        return self._all()[name]

    def __setitem__(self, name: str, value: bytes) -> None:
        self._fs._native.set_xattr(self._path, name, bytes(value))

    def __delitem__(self, name: str) -> None:
        try:
            self._fs._native.remove_xattr(self._path, name)
        except OSError as error:
            if error.errno == 61:  # ENODATA
                raise KeyError(name) from None
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"Xattrs({self._all()!r})"
