"""Paths of an image, used like ``pathlib.Path``."""

from __future__ import annotations

import fnmatch
import re
import stat as _stat
import time as _time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Iterator, Optional, Union

if TYPE_CHECKING:
    from ._fs import FileSystem, Xattrs
    from ._native import Stat

#: A path of an image: text, bytes (for names that are not UTF-8), or a Path.
PathLike = Union[str, bytes, "Path", PurePosixPath]


def text(path: PathLike) -> str:
    """A path as ``str``; bytes that are not UTF-8 become lone surrogates."""
    if isinstance(path, str):
        return path
    if isinstance(path, bytes):
        return path.decode("utf-8", "surrogateescape")
    return str(path)


def normal(path: str) -> str:
    """With one slash at the start, and no empty or "." components. ".." stays: it depends on links."""
    if path.startswith("/") and "//" not in path and "/." not in path and not path.endswith("/"):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


class Path:
    """A path of an image. It need not exist.

    >>> fs["/etc"] / "motd"
    Path('/etc/motd')
    >>> [path.name for path in fs["/etc"].iterdir()]
    ['motd', 'network']

    It is no ``os.PathLike``: ``builtins.open(path)`` would open a file of the host. Two paths are equal if
    their file system and their text are.
    """

    __slots__ = ("_text", "fs")

    def __init__(self, fs: FileSystem, path: PathLike = "/") -> None:
        self.fs = fs
        self._text = normal(text(path))

    # The text.

    def __str__(self) -> str:
        return self._text

    def __bytes__(self) -> bytes:
        return self._text.encode("utf-8", "surrogateescape")

    def __repr__(self) -> str:
        return f"Path({self._text!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self.fs is other.fs and self._text == other._text

    def __lt__(self, other: Path) -> bool:
        return self.parts < other.parts

    def __hash__(self) -> int:
        return hash((id(self.fs), self._text))

    @property
    def pure(self) -> PurePosixPath:
        """The path without its file system."""
        return PurePosixPath(self._text)

    @property
    def name(self) -> str:
        """The last component; empty for the root."""
        return self._text.rpartition("/")[2]

    @property
    def parent(self) -> Path:
        """The directory in the path; that of the root is the root."""
        return Path(self.fs, self._text.rpartition("/")[0] or "/")

    @property
    def parents(self) -> tuple[Path, ...]:
        """All directories in the path, the nearest first."""
        return tuple(Path(self.fs, str(path)) for path in self.pure.parents)

    @property
    def parts(self) -> tuple[str, ...]:
        """The components, beginning with "/"."""
        return self.pure.parts

    @property
    def suffix(self) -> str:
        """The part of the name from its last dot."""
        return self.pure.suffix

    @property
    def suffixes(self) -> list[str]:
        return self.pure.suffixes

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.pure.stem

    def joinpath(self, *parts: PathLike) -> Path:
        """The path with these below it. An absolute one starts at the root again."""
        joined = self._text
        for part in parts:
            added = text(part)
            joined = added if added.startswith("/") else f"{joined}/{added}"
        return Path(self.fs, joined)

    def __truediv__(self, part: PathLike) -> Path:
        return self.joinpath(part)

    def with_name(self, name: str) -> Path:
        return Path(self.fs, str(self.pure.with_name(name)))

    def with_suffix(self, suffix: str) -> Path:
        return Path(self.fs, str(self.pure.with_suffix(suffix)))

    def relative_to(self, other: PathLike) -> PurePosixPath:
        return self.pure.relative_to(normal(text(other)))

    def match(self, pattern: str) -> bool:
        return self.pure.match(pattern)

    # What is there.

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """The attributes. Symbolic links are followed."""
        return self.fs._native.stat(self._text, follow_symlinks)

    def lstat(self) -> Stat:
        """The attributes, of a symbolic link itself."""
        return self.fs._native.stat(self._text, False)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.fs._native.mode(self._text, follow_symlinks) is not None

    def _is(self, kind: int, follow: bool = True) -> bool:
        mode = self.fs._native.mode(self._text, follow)
        return mode is not None and _stat.S_IFMT(mode) == kind

    def is_file(self) -> bool:
        return self._is(_stat.S_IFREG)

    def is_dir(self) -> bool:
        return self._is(_stat.S_IFDIR)

    def is_symlink(self) -> bool:
        return self._is(_stat.S_IFLNK, False)

    def readlink(self) -> str:
        """The target of a symbolic link, as it is stored."""
        return self.fs._native.readlink(self._text)

    @property
    def xattrs(self) -> Xattrs:
        """The extended attributes, like a dict: full names, and values of bytes."""
        from ._fs import Xattrs

        return Xattrs(self.fs, self._text)

    # Reading.

    def read_bytes(self) -> bytes:
        return self.fs._native.read(self._text)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        """A file object, as the built-in ``open`` returns. Text is UTF-8 by default."""
        return self.fs.open(self, mode, buffering, encoding, errors, newline)

    def iterdir(self) -> Iterator[Path]:
        """The paths of a directory's names, in the order in which they are stored."""
        for name, _kind, _ino in self.fs._entries(self._text):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths below this one that match: ``*``, ``?``, ``[..]``, and ``**`` for directories at any
        depth. Symbolic links are not followed by ``**``."""
        if pattern.startswith("/"):
            raise NotImplementedError("a pattern is relative")
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if not parts:
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        # A path is reached in several ways if there are several "**".
        seen: set[str] = set()
        for found in _select(self, parts):
            if parts.count("**") < 2 or found._text not in seen:
                seen.add(found._text)
                yield found

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As ``glob("**/" + pattern)``."""
        return self.glob("**/" + pattern)

    # Changing.

    def write_bytes(self, data: Any) -> int:
        """Replaces the content; makes the file if it does not exist."""
        content = data if isinstance(data, bytes) else bytes(memoryview(data))
        self.fs._native.write(self._text, content)
        return len(content)

    def write_text(self, data: str, encoding: str = "utf-8", errors: str = "strict") -> int:
        self.write_bytes(data.encode(encoding, errors))
        return len(data)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, of root."""
        if parents and self.parent != self:
            self.fs._native.makedirs(self.parent._text, 0o755)
        try:
            self.fs._native.mkdir(self._text, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Makes an empty file, or sets the times of an existing one to now."""
        if exist_ok and self.exists():
            self.utime()
        else:
            self.fs._native.open_file(self._text, True, not exist_ok, False, mode).close()

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.fs._native.unlink(self._text)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        self.fs._native.rmdir(self._text)

    def rmtree(self) -> None:
        """Removes a directory with all that is below it."""
        self.fs._native.rmtree(self._text)

    def rename(self, target: PathLike) -> Path:
        """Moves it; a file or an empty directory with the new name is replaced. Returns the new path."""
        to = Path(self.fs, target)
        self.fs._native.rename(self._text, to._text, True)
        return to

    replace = rename

    def symlink_to(self, target: PathLike, target_is_directory: bool = False) -> None:
        """Makes this path a symbolic link. The target is stored as it is."""
        self.fs._native.symlink(text(target), self._text)

    def hardlink_to(self, target: PathLike) -> None:
        """Makes this path a further name of an existing file."""
        self.fs._native.link(normal(text(target)), self._text)

    def mknod(self, mode: int, device: tuple[int, int] = (0, 0)) -> None:
        """Makes a device (with major and minor number), fifo or socket: ``stat.S_IFCHR | 0o600``."""
        self.fs._native.mknod(self._text, mode, device)

    def truncate(self, size: int) -> None:
        self.fs._native.truncate(self._text, size)

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        self.fs._native.chmod(self._text, mode & 0o7777, follow_symlinks)

    def lchmod(self, mode: int) -> None:
        self.chmod(mode, follow_symlinks=False)

    def chown(self, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group by number; -1 leaves one as it is."""
        self.fs._native.chown(
            self._text, None if uid < 0 else uid, None if gid < 0 else gid, follow_symlinks
        )

    def utime(
        self,
        times: Optional[tuple[float, float]] = None,
        *,
        ns: Optional[tuple[int, int]] = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of last access and last change, as ``os.utime``; to now by default."""
        if times is not None and ns is not None:
            raise ValueError("utime: times and ns exclude each other")
        if ns is not None:
            atime, mtime = ns
        elif times is not None:
            atime, mtime = (round(time * 1e9) for time in times)
        else:
            atime = mtime = _time.time_ns()
        second = 1_000_000_000
        self.fs._native.utime(self._text, divmod(atime, second), divmod(mtime, second), follow_symlinks)


def _select(path: Path, parts: list[str]) -> Iterator[Path]:
    """The paths below ``path`` that match the components of a pattern."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        pending = [path]
        seen: set[int] = set()
        while pending:
            directory = pending.pop()
            if rest:
                yield from _select(directory, rest)
            else:
                yield directory
            below = []
            for name, kind, ino in _listed(directory):
                # A damaged image can reach a directory twice.
                if _kind(directory, name, kind) == _stat.S_IFDIR and ino not in seen:
                    seen.add(ino)
                    below.append(directory / name)
            pending.extend(reversed(below))
    elif not re.search(r"[*?\[]", part):
        found = path / part
        if found.exists(follow_symlinks=bool(rest)):
            yield from _select(found, rest) if rest else (found,)
    else:
        matches = re.compile(fnmatch.translate(part)).match
        for name, kind, _ino in _listed(path):
            if matches(name):
                found = path / name
                if not rest:
                    yield found
                elif kind != _stat.S_IFREG and found.is_dir():
                    yield from _select(found, rest)


def _listed(path: Path) -> Iterator[tuple[str, int, int]]:
    try:
        yield from path.fs._entries(path._text)
    except (FileNotFoundError, NotADirectoryError):
        return


def _kind(directory: Path, name: str, kind: int) -> int:
    """The type of an entry; old file systems have none in their directories."""
    return kind or _stat.S_IFMT((directory / name).lstat().st_mode)
