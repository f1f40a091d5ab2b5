"""ext4 images for fsspec: protocol ``ext4``. Needs the package fsspec.

>>> import fsspec
>>> with fsspec.open("ext4:///etc/motd", fo="a.img") as file:
...     file.read()
b'hello\\n'
>>> with fsspec.open("ext4://etc/motd::file://a.img") as file:
...     file.read()
b'hello\\n'
"""

from __future__ import annotations

import stat as _stat
from typing import Any, Optional

import fsspec  # type: ignore[import-untyped]
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]

from ._fs import open as _open
from ._path import Path
from ._types import image_of

_KINDS = {_stat.S_IFREG: "file", _stat.S_IFDIR: "directory", _stat.S_IFLNK: "link"}


class Ext4FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A file system in an image.

    ``fo`` is a path, a URL of another fsspec file system, or a seekable binary file object. ``writable``
    opens the image for changes: they are durable when a written file is closed, and after ``close``.
    """

    protocol = "ext4"
    root_marker = "/"
    # An instance keeps its image open, so that another one may have to see changes.
    cachable = False

    def __init__(
        self,
        fo: Any = "",
        writable: bool = False,
        offset: int = 0,
        size: Optional[int] = None,
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(self, **kwargs)
        fo = image_of(fo)
        self._outer: Any = None
        if isinstance(fo, str):
            if fo.startswith("file://"):
                fo, target_protocol = fo[len("file://") :], None
            if target_protocol not in (None, "file", "local") or "://" in fo:
                mode = "r+b" if writable else "rb"
                self._outer = fsspec.open(fo, mode=mode, protocol=target_protocol, **(target_options or {}))
                fo = self._outer.__enter__()
        self.image = _open(fo, writable, offset, size)

    def close(self) -> None:
        """Makes all changes durable and closes the image."""
        self.image.close()
        if self._outer is not None:
            self._outer.__exit__(None, None, None)
            self._outer = None

    def __del__(self) -> None:
        if hasattr(self, "image"):
            self.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = super()._strip_protocol(path)
        return "/" + path.strip("/")

    def _at(self, path: str) -> Path:
        return self.image[self._strip_protocol(path)]

    def _info(self, path: Path, stat: Any) -> dict[str, Any]:
        kind = _KINDS.get(_stat.S_IFMT(stat.st_mode), "other")
        info = {
            "name": str(path),
            "size": stat.st_size if kind == "file" else 0,
            "type": kind,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "mtime": stat.st_mtime,
            "created": stat.st_birthtime if stat.st_birthtime is not None else stat.st_ctime,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": kind == "link",
        }
        if kind == "link":
            info["destination"] = path.readlink()
            try:
                target = path.stat()
            except OSError:
                return info
            info["type"] = _KINDS.get(_stat.S_IFMT(target.st_mode), "other")
            info["size"] = target.st_size if info["type"] == "file" else 0
        return info

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        at = self._at(path)
        return self._info(at, at.lstat())

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        at = self._at(path)
        below = sorted(at.iterdir()) if at.is_dir() else [at]
        if not detail:
            at.lstat()  # raises if there is no such file
            return [str(each) for each in below]
        return [self._info(each, each.lstat()) for each in below]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._at(path).exists()

    def isfile(self, path: str) -> bool:
        return self._at(path).is_file()

    def isdir(self, path: str) -> bool:
        return self._at(path).is_dir()

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any
    ) -> bytes:
        at = self._at(path)
        if start is None and end is None:
            return at.read_bytes()
        with at.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            return bytes(file.read(max(last - first, 0)))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        return self.image.open(self._strip_protocol(path), mode, on_close=self._file_closed)

    def _file_closed(self) -> None:
        # Each open file refers to this method, and so keeps the image open.
        if self.image.writable:
            self.image.sync()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self._open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source = self._at(path1)
        if source.is_dir():
            self.mkdir(path2)
            return
        with source.open("rb") as file, self._open(path2, "wb") as copy:
            while data := file.read(1 << 20):
                copy.write(data)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self._at(path).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._at(path).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self._at(path).rmdir()

    def rm_file(self, path: str) -> None:
        self._at(path).unlink()

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for each in path if isinstance(path, list) else [path]:
            at = self._at(each)
            if recursive and at.is_dir() and not at.is_symlink() and maxdepth is None:
                at.rmtree()
            else:
                super().rm(each, recursive=recursive, maxdepth=maxdepth)

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **kwargs: Any
    ) -> None:
        self._at(path1).rename(self._strip_protocol(path2))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate:
            self._at(path).write_bytes(b"")
        else:
            self._at(path).touch()

    def created(self, path: str) -> Any:
        return _moment(self.info(path)["created"])

    def modified(self, path: str) -> Any:
        return _moment(self._at(path).stat().st_mtime)


def _moment(seconds: float) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
