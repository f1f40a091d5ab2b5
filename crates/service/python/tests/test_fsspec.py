"""The fsspec file system."""

import io

import pytest

import extant_ext4

fsspec = pytest.importorskip("fsspec")


def test_urls(image):
    with fsspec.open("ext4:///etc/motd", fo=str(image)) as file:
        assert file.read() == b"hello\n"
    with fsspec.open(f"ext4://etc/motd::file://{image}") as file:
        assert file.read() == b"hello\n"
    with fsspec.open(f"ext4://etc/motd::{image}", "rt") as file:
        assert file.read() == "hello\n"
    with fsspec.open_files(f"ext4://etc/*::file://{image}", "rb")[0] as file:
        assert file.read() == b"hello\n"


def test_an_image_in_another_file_system(image):
    memory = fsspec.filesystem("memory")
    memory.pipe("/a.img", image.read_bytes())
    with fsspec.open("ext4://etc/motd::memory://a.img") as file:
        assert file.read() == b"hello\n"
    memory.rm("/a.img")


def test_reading(image):
    fs = fsspec.filesystem("ext4", fo=image)
    assert fs.ls("/etc", detail=False) == ["/etc/issue", "/etc/motd", "/etc/network"]
    info = fs.info("/etc/motd")
    assert (info["name"], info["size"], info["type"]) == ("/etc/motd", 6, "file")
    assert [entry["type"] for entry in fs.ls("etc")] == ["file", "file", "directory"]
    assert fs.info("/lib")["type"] == "directory" and fs.info("/lib")["destination"] == "usr/lib"
    assert fs.info("/dangling")["type"] == "link"
    assert fs.exists("/etc/motd") and fs.isfile("/etc/motd") and fs.isdir("/lib") and not fs.exists("/x")
    assert fs.cat("/etc/motd") == b"hello\n" and fs.cat_file("/etc/motd", 1, -1) == b"ello"
    assert fs.glob("/etc/*face*") == [] and fs.glob("/**/inter*") == ["/etc/network/interfaces"]
    assert fs.find("/etc") == ["/etc/issue", "/etc/motd", "/etc/network/interfaces"]
    assert fs.du("/usr") == 3 << 20
    assert fs.modified("/etc/motd").year > 2000 and fs.created("/etc/motd").year > 2000
    assert [row[0] for row in fs.walk("/etc")] == ["/etc", "/etc/network"]
    with fs.open("/etc/motd", "r") as file:
        assert file.readline() == "hello\n"
    with pytest.raises(FileNotFoundError):
        fs.ls("/nothing")
    with pytest.raises(OSError):
        fs.open("/new", "wb")
    fs.close()


def test_writing(image, tmp_path):
    fs = fsspec.filesystem("ext4", fo=image, writable=True)
    with fs.open("/new", "wb") as file:
        file.write(b"new")
    fs.pipe("/piped", b"piped")
    fs.makedirs("/a/b", exist_ok=True)
    fs.mkdir("/c/d")
    fs.cp("/etc/motd", "/a/b/motd")
    fs.mv("/new", "/a/new")
    fs.touch("/empty")
    (tmp_path / "up").write_text("from the host")
    fs.put(str(tmp_path / "up"), "/up")
    fs.get("/etc/motd", str(tmp_path / "down"))
    assert (tmp_path / "down").read_text() == "hello\n"
    fs.rm("/usr", recursive=True)
    fs.rm("/etc/issue")
    fs.rmdir("/c/d")
    # What was closed is durable.
    assert extant_ext4.open(image)["/piped"].exists()
    fs.close()
    found = extant_ext4.open(image)
    assert found["/a/b/motd"].read_text() == "hello\n" and found["/a/new"].read_text() == "new"
    assert found["/up"].read_text() == "from the host" and found["/empty"].stat().st_size == 0
    assert "/usr" not in found and "/etc/issue" not in found and "/c/d" not in found
    assert extant_ext4.check(image).clean


def test_an_open_file_keeps_the_image(image):
    file = fsspec.open("ext4:///etc/motd", fo=io.BytesIO(image.read_bytes())).open()
    assert file.read() == b"hello\n"
    file.close()
