"""Changing an image."""

import errno
import gc
import io
import os
import stat
import warnings

import pytest

import extant_ext4


def again(image):
    """The image after it was closed, which is clean."""
    report = extant_ext4.check(image)
    assert report.clean, report.findings
    return extant_ext4.open(image)


def test_changes_are_there_after_the_close(image):
    with extant_ext4.open(image, writable=True) as fs:
        assert fs["/etc/hostname"].write_text("bóx7\n") == 5
        assert fs["/etc/motd"].write_bytes(bytearray(b"bye\n")) == 4
        fs["/srv/www/htdocs"].mkdir(parents=True)
        fs["/srv"].mkdir(exist_ok=True)
    fs = again(image)
    assert fs["/etc/hostname"].read_text() == "bóx7\n" and fs["/etc/issue"].read_text() == "bye\n"
    assert fs["/srv/www/htdocs"].is_dir() and fs["/srv"].stat().st_mode == stat.S_IFDIR | 0o755


def test_names(fs):
    new = fs["/etc/motd"].rename("/etc/moved")
    assert new == fs["/etc/moved"] and new.read_text() == "hello\n" and "/etc/motd" not in fs
    fs["/new"].touch()
    fs["/new"].replace("/etc/moved")
    assert fs["/etc/moved"].stat().st_size == 0
    fs["/etc/link"].symlink_to("moved")
    fs["/etc/hard"].hardlink_to("/etc/moved")
    assert fs["/etc/link"].readlink() == "moved" and fs["/etc/hard"].stat().st_nlink == 2
    fs["/etc/link"].unlink()
    fs["/etc/link"].unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        fs["/etc/link"].unlink()
    with pytest.raises(FileExistsError):
        fs["/etc"].mkdir()
    with pytest.raises(FileExistsError):
        fs["/etc/hard"].mkdir(exist_ok=True)
    with pytest.raises(OSError) as raised:
        fs["/etc"].rmdir()
    assert raised.value.errno == errno.ENOTEMPTY
    fs.rmtree("/etc")
    fs["/usr"].rmtree()
    assert "/etc" not in fs and "/usr" not in fs
    fs["/null"].mknod(stat.S_IFCHR | 0o666, (1, 3))
    assert fs["/null"].stat().st_rdev == os.makedev(1, 3)
    fs["/pipe"].mknod(stat.S_IFIFO | 0o600)
    assert stat.S_ISFIFO(fs["/pipe"].stat().st_mode)


def test_attributes(fs):
    path = fs["/etc/motd"]
    path.chmod(0o4755)
    path.chown(1000, 2000)
    path.chown(gid=3000)
    path.utime(ns=(1_700_000_000_123_456_789, -1))
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (1000, 3000)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_700_000_000_123_456_789, -1)
    path.utime((1.5, 2.25))
    assert (path.stat().st_atime, path.stat().st_mtime) == (1.5, 2.25)
    far = (9_500_000_000_000_000_007, 15_000_000_000_000_000_001)
    path.utime(ns=far)
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == far
    path.touch()
    assert path.stat().st_mtime > 1_600_000_000
    fs["/lib"].chown(7, 7, follow_symlinks=False)
    assert fs["/lib"].lstat().st_uid == 7 and fs["/lib"].stat().st_uid != 7
    with pytest.raises(ValueError):
        path.utime((1, 1), ns=(1, 1))
    with pytest.raises(FileExistsError):
        path.touch(exist_ok=False)
    path.truncate(1 << 20)
    assert path.stat().st_size == 1 << 20


def test_xattrs_are_a_dict(fs):
    xattrs = fs["/etc/motd"].xattrs
    xattrs["user.origin"] = b"template"
    xattrs.update({"user.empty": b"", "trusted.x": b"\0\xff"})
    assert dict(xattrs) == {"user.origin": b"template", "user.empty": b"", "trusted.x": b"\0\xff"}
    assert "user.origin" in xattrs and "user.none" not in xattrs and len(xattrs) == 3
    assert xattrs["user.origin"] == b"template" and "template" in repr(xattrs)
    del xattrs["user.origin"]
    assert xattrs.get("user.origin") is None
    with pytest.raises(KeyError):
        del xattrs["user.origin"]
    with pytest.raises(KeyError):
        xattrs["user.none"]
    with pytest.raises(OSError) as raised:
        xattrs["nonsense"] = b""
    assert raised.value.errno == errno.EOPNOTSUPP
    with pytest.raises(FileNotFoundError):
        fs["/nothing"].xattrs["user.x"]


def test_modes_of_files(fs):
    with fs.open("/new", "x") as file:
        assert isinstance(file, io.TextIOWrapper)
        file.write("one\ntwo\n")
    with pytest.raises(FileExistsError):
        fs.open("/new", "x")
    with fs.open("/new", "a") as file:
        file.write("three\n")
        file.flush()
        assert fs["/new"].read_text() == "one\ntwo\nthree\n"
    with fs.open("/new", "r+b") as file:
        assert isinstance(file, io.BufferedRandom)
        assert file.read(3) == b"one"
        file.write(b"!")
        file.seek(0)
        assert file.readline() == b"one!two\n"
        file.truncate(5)
    assert fs["/new"].read_bytes() == b"one!t"
    with fs.open("/new", "wb") as file:
        assert isinstance(file, io.BufferedWriter)
        file.write(memoryview(b"x" * 300_000))
    assert fs["/new"].stat().st_size == 300_000
    with fs.open("/sparse", "w+b", buffering=0) as file:
        file.seek(1 << 20)
        file.write(b"end")
        assert file.seek(0, os.SEEK_DATA) == 1 << 20 and file.seek(0, os.SEEK_HOLE) == 0
        file.seek(0)
        assert file.read(2) == b"\0\0"
        file.sync()
        with pytest.raises(OSError) as raised:
            file.seek(2 << 20, os.SEEK_DATA)
        assert raised.value.errno == errno.ENXIO
    with pytest.raises(FileNotFoundError):
        fs.open("/nothing", "r+")
    with pytest.raises(FileNotFoundError):
        fs.open("/nothing/below", "w")


def test_a_file_system_closes_its_files(image):
    fs = extant_ext4.open(image, writable=True)
    file = fs.open("/new", "w")
    file.write("in the buffer")
    names = fs["/"].iterdir()
    next(names)
    scan = fs.scan()
    next(scan)
    fs.close()
    assert file.closed
    with pytest.raises(ValueError):
        file.write("x")
    assert again(image)["/new"].read_text() == "in the buffer"


def test_one_that_is_deleted_is_closed(image):
    fs = extant_ext4.open(image, writable=True)
    fs["/new"].touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del fs
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert "/new" in again(image)


def test_there_is_one_writer(image):
    with extant_ext4.open(image, writable=True):
        with pytest.raises(OSError) as raised:
            extant_ext4.open(image, writable=True)
        assert raised.value.errno == errno.EBUSY and raised.value.filename == str(image)
        assert extant_ext4.open(image)["/etc/motd"].exists()
    extant_ext4.open(image, writable=True).close()


def test_a_file_system_for_reading_is_not_changed(image):
    before = image.read_bytes()
    fs = extant_ext4.open(image)
    path = fs["/etc/motd"]
    for change in (
        lambda: path.write_text("x"),
        lambda: path.unlink(),
        lambda: path.chmod(0),
        lambda: fs["/new"].mkdir(),
        lambda: fs["/new"].touch(),
        lambda: fs.open("/etc/motd", "w"),
        lambda: fs.open("/etc/motd", "r+"),
        lambda: path.rename("/x"),
        lambda: fs.rmtree("/etc"),
        lambda: path.xattrs.update({"user.x": b""}),
    ):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS
    fs.close()
    assert image.read_bytes() == before


def test_no_space(image):
    with extant_ext4.open(image, writable=True) as fs:
        with pytest.raises(OSError) as raised:
            fs["/big"].write_bytes(bytes(64 << 20))
        assert raised.value.errno == errno.ENOSPC and raised.value.filename == "/big"
        fs["/big"].unlink()
        fs.sync()
        assert fs.trim() > 0
    again(image)
