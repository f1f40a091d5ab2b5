"""Images in other places than files, errors at open, threads."""

import errno
import io
import subprocess
import sys
import threading

import pytest

import extant_ext4


class Slow(io.RawIOBase):
    """A stream as forensic libraries have them: short reads, nothing from seek."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def seek(self, offset, whence=0):
        self.at = offset + (len(self.data) if whence == 2 else 0)

    def tell(self):
        return self.at

    def read(self, size=-1):
        part = bytes(self.data[self.at : self.at + min(size, 1000)])
        self.at += len(part)
        return part


def test_file_objects(image):
    data = image.read_bytes()
    with open(image, "rb") as file, extant_ext4.open(file) as fs:
        assert fs["/etc/motd"].read_text() == "hello\n"
        assert {path: data for path, _, data in fs.scan()}["/etc/motd"] == b"hello\n"
    assert extant_ext4.open(io.BytesIO(data))["/lib/large"].read_bytes() == b"x" * (3 << 20)
    assert extant_ext4.open(Slow(data))["/etc/motd"].read_text() == "hello\n"
    assert extant_ext4.check(io.BytesIO(data)).clean


def test_a_file_object_can_be_written(image, tmp_path):
    memory = io.BytesIO(image.read_bytes())
    with extant_ext4.open(memory, writable=True) as fs:
        fs["/new"].write_bytes(b"y" * 100_000)
        fs.rmtree("/usr")
    assert extant_ext4.check(memory).clean
    assert extant_ext4.open(memory)["/new"].stat().st_size == 100_000
    with open(image, "r+b") as file, extant_ext4.open(file, writable=True) as fs:
        fs["/new"].touch()
    assert "/new" in extant_ext4.open(image)


def test_an_image_in_an_image(image, tmp_path):
    outer = tmp_path / "outer.img"
    extant_ext4.mkfs(outer, 64 << 20)
    with extant_ext4.open(outer, writable=True) as fs:
        fs["/inner.img"].write_bytes(image.read_bytes())
        with fs.open("/inner.img", "r+b") as file, extant_ext4.open(file, writable=True) as inner:
            inner["/new"].write_text("nested")
    assert extant_ext4.check(outer).clean
    with extant_ext4.open(outer) as fs, fs.open("/inner.img", "rb") as file:
        assert extant_ext4.check(file).clean
        assert extant_ext4.open(file)["/new"].read_text() == "nested"


def test_an_object_that_uses_its_own_image(image):
    class Own(Slow):
        fs = None
        seen = None

        def read(self, size=-1):
            if self.fs is not None:
                fs, self.fs = self.fs, None
                try:
                    fs["/lib/large"].read_bytes()
                except OSError as error:
                    self.seen = error
            return super().read(size)

    stream = Own(image.read_bytes())
    fs = extant_ext4.open(stream)
    stream.fs = fs
    assert len(fs["/lib/large"].read_bytes()) == 3 << 20
    assert "uses the image" in str(stream.seen)


def test_a_part_of_an_image(image):
    data = image.read_bytes()
    disk = b"\1" * (1 << 20) + data + b"\2" * 4096
    for options in ({"offset": 1 << 20}, {"offset": 1 << 20, "size": len(data)}):
        assert extant_ext4.open(io.BytesIO(disk), **options)["/etc/motd"].exists()
        assert extant_ext4.check(io.BytesIO(disk), **options).clean
    path = image.with_name("disk.img")
    path.write_bytes(disk)
    with extant_ext4.open(path, writable=True, offset=1 << 20, size=len(data)) as fs:
        fs["/new"].touch()
    after = path.read_bytes()
    assert after[: 1 << 20] == disk[: 1 << 20] and after[-4096:] == disk[-4096:]
    with pytest.raises(OSError):
        extant_ext4.open(path, offset=1 << 40)
    with pytest.raises(OSError):
        extant_ext4.open(path, offset=1 << 20, size=1 << 40)


def test_what_is_no_image(tmp_path, image):
    with pytest.raises(FileNotFoundError) as raised:
        extant_ext4.open(tmp_path / "nothing")
    assert raised.value.filename == str(tmp_path / "nothing") and raised.value.errno == errno.ENOENT
    assert "os error" not in str(raised.value)
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    with pytest.raises(extant_ext4.OpenError) as raised:
        extant_ext4.open(tmp_path / "zeros")
    assert isinstance(raised.value, OSError) and "ext4" in str(raised.value)
    assert raised.value.filename == str(tmp_path / "zeros")
    for wrong in (3, None, object()):
        with pytest.raises(TypeError):
            extant_ext4.open(wrong)
    with pytest.raises(OSError) as raised, open(image, "rb") as file:
        extant_ext4.open(file, writable=True)
    assert raised.value.errno == errno.EROFS
    fs = extant_ext4.open(image)
    for wrong in ("/a\0b", b"/a\0b"):
        with pytest.raises(ValueError):
            fs[wrong].stat()


def test_an_object_that_fails(image):
    class Failing(Slow):
        fails = None

        def read(self, size=-1):
            if self.fails:
                raise self.fails
            return super().read(size)

    stream = Failing(image.read_bytes())
    fs = extant_ext4.open(stream)
    stream.fails = TimeoutError(errno.ETIMEDOUT, "slow disk")
    with pytest.raises(TimeoutError):
        fs["/lib/large"].read_bytes()
    stream.fails = ZeroDivisionError("a bug")
    with pytest.raises(OSError) as raised:
        fs["/lib/large"].read_bytes()
    assert raised.value.errno == errno.EIO and "a bug" in str(raised.value)
    stream.fails = None
    errors = []
    scan = fs.scan(onerror=errors.append)
    stream.fails = ZeroDivisionError("a bug")
    for _row in scan:
        pass
    assert errors and all(isinstance(error, OSError) for error in errors)
    stream.fails = None
    assert len(fs["/lib/large"].read_bytes()) == 3 << 20


def test_an_operation_on_two_paths_names_both(fs):
    with pytest.raises(FileNotFoundError) as raised:
        fs["/nothing"].rename("/else")
    assert (raised.value.filename, raised.value.filename2) == ("/nothing", "/else")


def test_threads(fs):
    failed = []

    def work(number):
        try:
            fs[f"/{number}"].mkdir()
            for file in range(200):
                path = fs[f"/{number}/{file}"]
                path.write_text(f"{number} {file}")
                assert path.read_text() == f"{number} {file}"
            assert len(list(fs.scan(f"/{number}"))) == 201
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sum(len(files) for _, _, files in fs.walk("/3")) == 200


def test_threads_on_a_file_object(image):
    fs = extant_ext4.open(io.BytesIO(image.read_bytes()), writable=True)
    failed = []

    def work(number):
        try:
            for file in range(20):
                fs[f"/{number}-{file}"].write_bytes(bytes(10_000))
                assert len(fs["/lib/large"].read_bytes()) == 3 << 20
            fs.sync()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    scans = [sum(1 for _ in fs.scan()) for _ in range(3)]
    for thread in threads:
        thread.join()
    fs.close()
    assert not failed and min(scans) > 5


def test_io_releases_the_lock(image):
    """A thread runs while another one waits for a read of the image."""
    entered, leave = threading.Event(), threading.Event()

    class Waiting(Slow):
        waits = False

        def read(self, size=-1):
            if self.waits:
                entered.set()
                assert leave.wait(10)
            return super().read(size)

    stream = Waiting(image.read_bytes())
    fs = extant_ext4.open(stream)
    stream.waits = True
    reader = threading.Thread(target=lambda: fs["/lib/large"].read_bytes())
    reader.start()
    assert entered.wait(10)
    stream.waits = False
    leave.set()
    reader.join()


LEFT_OPEN = """
import io, sys, extant_ext4
with open(sys.argv[1], "rb") as file:
    memory = io.BytesIO(file.read())
of_object = extant_ext4.open(memory, writable=True)
of_object["/new"].touch()
scan = of_object.scan()
next(scan)
fs = extant_ext4.open(sys.argv[1], writable=True)
fs["/left"].write_text("open")
file = fs.open("/file", "w")
file.write("buffered")
"""


def test_what_is_open_at_exit_is_closed(image):
    command = [sys.executable, "-c", LEFT_OPEN, image]
    done = subprocess.run(command, timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    fs = extant_ext4.open(image)
    assert fs["/left"].read_text() == "open" and fs["/file"].read_text() == "buffered"
    assert extant_ext4.check(image).clean
