"""Images that the tests share."""

import os

import pytest

import extant_ext4

#: Not UTF-8.
LATIN = b"na\xefve"


@pytest.fixture
def tree(tmp_path):
    """A small tree of the host."""
    root = tmp_path / "tree"
    (root / "etc/network").mkdir(parents=True)
    (root / "etc/motd").write_text("hello\n")
    (root / "etc/network/interfaces").write_text("auto lo\n")
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/large").write_bytes(b"x" * (3 << 20))
    (root / "usr/lib/.hidden.so").write_bytes(b"")
    (root / "lib").symlink_to("usr/lib")
    (root / "dangling").symlink_to("nowhere")
    os.link(root / "etc/motd", root / "etc/issue")
    with open(os.fsencode(root) + b"/" + LATIN, "wb") as file:
        file.write(b"latin")
    return root


@pytest.fixture
def image(tree, tmp_path):
    """An image of the tree, with room."""
    path = tmp_path / "a.img"
    extant_ext4.Builder(size=32 << 20).add_dir(tree).write(path)
    return path


@pytest.fixture
def fs(image):
    """The image, open for writing."""
    with extant_ext4.open(image, writable=True) as fs:
        yield fs
