"""Types that several modules use, and the conversion of images to what the native module takes."""

from __future__ import annotations

import os
import uuid as _uuid
from typing import Any, Union

#: A path of the host.
HostPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
#: A path of the host, or a seekable binary file object.
Image = Any
#: A UUID, or its text.
UuidLike = Union[str, bytes, _uuid.UUID]


def host_path(path: HostPath) -> str:
    """The path as ``str``."""
    return os.fsdecode(os.fspath(path))


def image_of(image: Image) -> Any:
    """A path as ``str``; a file object as it is."""
    if isinstance(image, (str, bytes)) or hasattr(image, "__fspath__"):
        return host_path(image)
    return image


def end_of(file: Any) -> int:
    """The size of a seekable file object. Some objects return nothing from ``seek``."""
    end = file.seek(0, os.SEEK_END)
    return int(file.tell() if end is None else end)


def uuid_bytes(value: UuidLike | None) -> bytes | None:
    """The 16 bytes of a UUID."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, _uuid.UUID) else _uuid.UUID(value)).bytes
