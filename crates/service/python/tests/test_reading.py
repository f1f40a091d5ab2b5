"""Reading by paths, as with pathlib and os."""

import io
import os
import stat

import pytest

import extant_ext4
from extant_ext4 import Path

LATIN = b"na\xefve"


def test_the_shortest_program(image):
    assert extant_ext4.open(image)["/etc/motd"].read_bytes() == b"hello\n"
    assert extant_ext4.open(str(image))["etc/motd"].read_text() == "hello\n"
    assert extant_ext4.open(os.fsencode(image))[b"/etc/motd"].read_text() == "hello\n"


def test_paths_are_text_like_those_of_pathlib(fs):
    path = fs / "etc" / "motd.tar.gz"
    assert path == fs["/etc/motd.tar.gz"] == Path(fs, "etc//./motd.tar.gz/")
    assert (path.name, path.stem, path.suffix) == ("motd.tar.gz", "motd.tar", ".gz")
    assert path.suffixes == [".tar", ".gz"]
    assert str(path) == "/etc/motd.tar.gz" and bytes(path) == b"/etc/motd.tar.gz"
    assert repr(path) == "Path('/etc/motd.tar.gz')"
    assert path.parent == fs["/etc"] and fs["/"].parent == fs["/"] and fs["/"].name == ""
    assert [str(parent) for parent in path.parents] == ["/etc", "/"]
    assert path.parts == ("/", "etc", "motd.tar.gz")
    assert path.joinpath("a", "b") == path / "a/b" and path / "/x" == fs["/x"]
    assert str(path.with_name("x")) == "/etc/x" and str(path.with_suffix(".xz")) == "/etc/motd.tar.xz"
    assert str(path.relative_to("/etc")) == "motd.tar.gz" and path.match("*.gz")
    assert len({path, fs["/etc/motd.tar.gz"], fs["/etc"]}) == 2
    assert fs["/a"] < fs["/b"] and path != "/etc/motd.tar.gz"
    with pytest.raises(TypeError):
        os.fspath(path)


def test_what_is_there(fs):
    assert fs["/etc/motd"].exists() and "/etc/motd" in fs and "/nothing" not in fs
    assert fs["/etc"].is_dir() and not fs["/etc"].is_file()
    assert fs["/lib"].is_symlink() and fs["/lib"].is_dir() and fs["/lib"].readlink() == "usr/lib"
    assert fs["/dangling"].is_symlink() and not fs["/dangling"].exists()
    assert fs["/dangling"].exists(follow_symlinks=False)
    assert not fs["/etc/motd/below"].exists()
    assert fs["/lib/large"].stat().st_size == 3 << 20
    with pytest.raises(TypeError):
        iter(fs)


def test_stat_is_like_that_of_os(fs, tree):
    here, there = fs["/etc/motd"].stat(), os.stat(tree / "etc/motd")
    for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns"):
        assert getattr(here, name) == getattr(there, name), name
    assert here.st_mtime == pytest.approx(there.st_mtime)
    assert here[stat.ST_SIZE] == 6 and len(here) == 10 and here[8] == there[8]
    assert stat.filemode(here.st_mode) == "-rw-r--r--"
    assert here.st_blocks == 8 and here.st_blksize == 4096 and here.st_rdev == 0
    assert here.st_birthtime_ns == here.st_mtime_ns and here.st_flags and here.st_project == 0
    assert here == fs["/etc/issue"].stat() and here != fs["/etc"].stat() and here != 3
    assert "st_size=6" in repr(here)
    assert stat.S_ISLNK(fs["/lib"].lstat().st_mode) and stat.S_ISDIR(fs["/lib"].stat().st_mode)


def test_listings(fs):
    assert sorted(path.name for path in fs["/etc"].iterdir()) == ["issue", "motd", "network"]
    assert [str(path) for path in fs["/lib"].iterdir() if path.suffix != ".so"] == ["/lib/large"]
    with pytest.raises(NotADirectoryError):
        list(fs["/etc/motd"].iterdir())


def test_a_directory_with_more_names_than_a_piece(fs):
    fs["/many"].mkdir()
    for number in range(3000):
        fs[f"/many/{number}"].touch()
    assert {int(path.name) for path in fs["/many"].iterdir()} == set(range(3000))


def names(paths):
    return sorted(str(path) for path in paths)


def test_glob(fs):
    root = fs["/"]
    assert names(root.glob("etc/*")) == ["/etc/issue", "/etc/motd", "/etc/network"]
    assert names(root.glob("e*/m?td")) == ["/etc/motd"]
    assert names(root.glob("*/[im]*")) == ["/etc/issue", "/etc/motd"]
    assert names(root.rglob("*face*")) == ["/etc/network/interfaces"]
    assert names(root.glob("**/*.so")) == ["/usr/lib/.hidden.so"]
    assert names(fs["/etc"].glob("**")) == ["/etc", "/etc/network"]
    assert names(root.glob("lib/lar*")) == ["/lib/large"]
    assert names(root.glob("dangl*")) == ["/dangling"] and names(root.glob("dangling")) == ["/dangling"]
    assert names(root.glob("**/network/**/inter*")) == ["/etc/network/interfaces"]
    assert names(root.glob("nothing/*")) == [] and names(fs["/nothing"].glob("*")) == []
    with pytest.raises(NotImplementedError):
        root.glob("/etc/*").__next__()
    with pytest.raises(ValueError):
        next(root.glob(""))


def test_walk_is_that_of_os(fs, tree):
    def rows(walk, top):
        return sorted((path[len(top) :], sorted(dirs), sorted(files)) for path, dirs, files in walk)

    fs["/lost+found"].rmdir()
    for topdown in (True, False):
        assert rows(fs.walk("/", topdown), "/") == rows(os.walk(tree, topdown), f"{tree}/")
    order = [path for path, _, _ in fs.walk("/etc", topdown=False)]
    assert order == ["/etc/network", "/etc"]
    visited = []
    for path, dirs, _files in fs.walk("/"):
        visited.append(path)
        dirs[:] = [name for name in dirs if name == "etc"]
    assert visited == ["/", "/etc"]
    errors = []
    assert list(fs.walk("/nothing", onerror=errors.append)) == [] and list(fs.walk("/nothing")) == []
    assert isinstance(errors[0], FileNotFoundError)


def test_walk_follows_links_once(fs):
    fs["/etc/up"].symlink_to("..")
    errors = []
    visited = [path for path, _, _ in fs.walk("/", followlinks=True, onerror=errors.append)]
    assert len(visited) == len(set(visited)) and "/etc" in visited
    assert any("been in this directory" in str(error) for error in errors)


def test_names_that_are_not_utf8(fs):
    text = os.fsdecode(LATIN)
    assert text in [path.name for path in fs["/"].iterdir()]
    assert fs["/" + text].read_bytes() == fs[b"/" + LATIN].read_bytes() == b"latin"
    assert bytes(fs["/" + text]) == b"/" + LATIN
    (fs / b"\xff").write_text("x")
    assert fs["/\udcff"].read_text() == "x"
    assert ("/\udcff", b"x") in [(path, data) for path, _, data in fs.scan("/")]
    (fs / "link").symlink_to(b"\xfe")
    assert fs["/link"].readlink() == "\udcfe"
    with pytest.raises(FileNotFoundError) as raised:
        fs[b"/\xf0"].read_bytes()
    assert raised.value.filename == "/\udcf0"
    (fs / "\u00fcber").touch()
    assert fs["/über"].exists()


def test_files(fs):
    with fs["/etc/motd"].open() as file:
        assert isinstance(file, io.TextIOWrapper) and file.readlines() == ["hello\n"]
        assert file.encoding == "utf-8"
    with fs.open("/lib/large", "rb") as file:
        assert isinstance(file, io.BufferedReader) and file.name == "/lib/large"
        assert file.seek(-3, os.SEEK_END) == (3 << 20) - 3 and file.read() == b"xxx" and file.read() == b""
        assert file.seek(0) == 0 and len(file.read(100)) == 100 and file.tell() == 100
        assert file.seek(50, os.SEEK_CUR) == 150 and file.readable() and file.seekable()
        assert not file.writable()
        buffer = bytearray(5)
        assert file.readinto(buffer) == 5 and buffer == b"xxxxx"
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with fs.open("/lib/large", "rb", buffering=0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.read(4) == b"xxxx" and len(file.readall()) == (3 << 20) - 4
        with pytest.raises(OSError):
            file.seek(-1)
        with pytest.raises(ValueError):
            file.seek(0, 9)
    with pytest.raises(ValueError):
        file.read()
    with pytest.raises(IsADirectoryError):
        fs.open("/etc")
    for mode in ("", "rw", "rr", "q", "rbt", "b"):
        with pytest.raises(ValueError):
            fs.open("/etc/motd", mode)
    with pytest.raises(ValueError):
        fs.open("/etc/motd", "r", buffering=0)
    with pytest.raises(ValueError):
        fs.open("/etc/motd", "rb", encoding="utf-8")


def test_files_and_iterators_keep_their_file_system(image):
    file = extant_ext4.open(image)["/etc/motd"].open("rb")
    assert file.read() == b"hello\n"
    file.close()
    assert len(list(extant_ext4.open(image).scan("/etc"))) == 5
    assert len(list(extant_ext4.open(image)["/etc"].iterdir())) == 3


def test_scan(fs, tree):
    fs["/lost+found"].rmdir()
    rows = {path: (stat_, data) for path, stat_, data in fs.scan()}
    assert rows["/etc/motd"][1] == rows["/etc/issue"][1] == b"hello\n"
    assert rows["/usr/lib/large"][1] == b"x" * (3 << 20)
    assert rows["/usr/lib/.hidden.so"][1] == b"" and rows["/etc"][1] is None
    assert rows["/lib"][1] == b"usr/lib"
    assert rows["/etc/motd"][0] == fs["/etc/motd"].stat()
    there = {"/" + os.path.relpath(os.path.join(path, name), tree)
             for path, dirs, files in os.walk(tree) for name in dirs + files}
    assert set(rows) == there | {"/"}
    assert [path for path, _, _ in fs.scan("/etc", sort=True)] == [
        "/etc", "/etc/issue", "/etc/motd", "/etc/network", "/etc/network/interfaces"]
    assert all(data is None for _, _, data in fs.scan(contents=False))
    assert [path for path, _, _ in fs.scan(contents=False)] == [path for path, _, _ in fs.scan()]
    assert {path: data for path, _, data in fs.scan(max_bytes=1 << 20)}["/usr/lib/large"] is None
    assert [row[0] for row in fs.scan("/etc/motd")] == ["/etc/motd"]
    with pytest.raises(FileNotFoundError):
        fs.scan("/nothing")
    begun = fs.scan()
    next(begun)
    begun.close()


def test_the_file_system_itself(image, tmp_path):
    with extant_ext4.open(image) as fs:
        space = fs.statfs()
        assert space.f_bsize == 4096 and 0 < space.f_bfree < space.f_blocks and space.f_namemax == 255
        assert fs.label == "" and fs.uuid.version and not fs.writable and not fs.recovered
        assert "a.img" in repr(fs)
        fs.sync()
    assert fs.closed and "closed" in repr(fs)
    fs.close()
    for use in (lambda: fs["/"].stat(), lambda: list(fs.walk()) or fs.scan(), fs.sync):
        with pytest.raises(ValueError):
            use()
