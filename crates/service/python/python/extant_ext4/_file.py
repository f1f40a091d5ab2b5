"""Files of an image as Python's file objects."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from . import _native

#: Bytes of a buffer, if the caller chooses none.
BUFFER_BYTES = 64 << 10


class RawFile(io.RawIOBase):
    """An unbuffered file. ``open`` wraps it in a buffer, unless ``buffering=0``."""

    def __init__(
        self,
        file: _native.File,
        name: str,
        mode: str,
        fs: object,
        on_close: Optional[Callable[[], object]] = None,
    ) -> None:
        self._file = file
        # A file system is closed when it is deleted, so its files keep it.
        self._fs = fs
        self._at = 0
        self._appends = "a" in mode
        self._reads = "r" in mode or "+" in mode
        self._writes = mode != "r"
        self._on_close = on_close
        self.name = name
        self.mode = mode + "b"
        if self._appends:
            self._at = file.size()

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def _must(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(what)

    def read(self, size: Optional[int] = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._must(self._reads, "not readable")
        data = self._file.read_at(self._at, size)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        self._must(self._reads, "not readable")
        data = self._file.read_at(self._at, (1 << 64) - 1)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        self._must(self._writes, "not writable")
        content = data if isinstance(data, bytes) else bytes(data)
        if self._appends:
            self._at = self._file.append(content)
        else:
            self._file.write_at(self._at, content)
            self._at += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Also with ``os.SEEK_DATA`` and ``os.SEEK_HOLE``."""
        self._must(True, "")
        if whence == os.SEEK_SET:
            at = offset
        elif whence == os.SEEK_CUR:
            at = self._at + offset
        elif whence == os.SEEK_END:
            at = self._file.size() + offset
        elif whence in (os.SEEK_DATA, os.SEEK_HOLE):
            found = self._file.seek_to(offset, whence == os.SEEK_HOLE)
            if found is None:
                raise OSError(6, os.strerror(6), self.name)
            at = found
        else:
            raise ValueError(f"invalid whence: {whence}")
        if at < 0:
            raise OSError(22, os.strerror(22), self.name)
        self._at = at
        return at

    def tell(self) -> int:
        self._must(True, "")
        return self._at

    def truncate(self, size: Optional[int] = None, /) -> int:
        self._must(self._writes, "not writable")
        size = self._at if size is None else size
        self._file.truncate(size)
        return size

    def sync(self) -> None:
        """Makes the file's written bytes and attributes durable. Flush a buffer first."""
        self._must(True, "")
        self._file.sync()

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()
            if self._on_close is not None:
                self._on_close()

    def __repr__(self) -> str:
        return f"<extant_ext4 file {self.name!r} mode={self.mode!r}>"


def parse_mode(mode: str) -> tuple[str, bool]:
    """The mode without "b" and "t", with "+" last, and whether it is a text mode."""
    kinds = [c for c in mode if c in "rwax"]
    flags = set(mode)
    if len(kinds) != 1 or flags - set("rwax+bt") or len(flags) != len(mode) or {"b", "t"} <= flags:
        raise ValueError(f"invalid mode: {mode!r}")
    return kinds[0] + ("+" if "+" in mode else ""), "b" not in mode


def wrap(
    raw: RawFile,
    mode: str,
    text: bool,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> Any:
    """The file object that ``open`` returns for a mode."""
    if not text and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if buffering == 0:
        if text:
            raise ValueError("can't have unbuffered text I/O")
        return raw
    size = BUFFER_BYTES if buffering in (-1, 1) else buffering
    buffer: Any
    if "+" in mode:
        buffer = io.BufferedRandom(raw, size)
    elif mode == "r":
        buffer = io.BufferedReader(raw, size)
    else:
        buffer = io.BufferedWriter(raw, size)
    if not text:
        return buffer
    return io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
