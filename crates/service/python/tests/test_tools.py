"""Builder, mkfs, check, resize and repair."""

import dataclasses
import errno
import io
import os
import signal
import tarfile
import time
import uuid

import pytest

import extant_ext4
from extant_ext4 import Builder


def tar_of(**files):
    """An archive in memory."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def test_builds_are_deterministic(tree, tmp_path):
    first, second = tmp_path / "1.img", tmp_path / "2.img"
    report = Builder(headroom=20, label="root").add_dir(tree).add_tar(tar_of(added=b"x")).write(first)
    Builder(headroom=20, label="root", threads=1).add_dir(str(tree)).add_tar(tar_of(added=b"x")).write(second)
    assert first.read_bytes() == second.read_bytes()
    assert report.image_bytes == first.stat().st_size and report.files == 6 and report.symlinks == 2
    assert report.extra_links == 1 and report.warnings == () and isinstance(report.uuid, uuid.UUID)
    fs = extant_ext4.open(first)
    assert fs.label == "root" and fs.uuid == report.uuid and fs["/added"].read_bytes() == b"x"
    assert extant_ext4.check(first).clean


def test_later_sources_are_on_top(tree, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(**{"etc/motd": b"from the tar\n"}).getvalue())
    for archive in (path, open(path, "rb")):
        Builder().add_dir(tree).add_tar(archive).write(tmp_path / "b.img", replace=True)
        assert extant_ext4.open(tmp_path / "b.img")["/etc/motd"].read_text() == "from the tar\n"
    archive.close()


def test_options_of_a_build(tree, tmp_path):
    image = tmp_path / "b.img"
    name = uuid.uuid4()
    builder = Builder(
        size=64 << 20, features="^has_journal", block_size=1024, uuid=name, owner=(5, 6), exclude=["usr"],
        clamp_mtime=1_000_000_000, xattrs=False, time=1_600_000_000,
    )
    builder.add_dir(tree)
    assert builder.write(image, dry_run=True).files and not image.exists()
    builder.write(image, sync=False)
    fs = extant_ext4.open(image)
    found = fs["/etc/motd"].stat()
    assert (found.st_uid, found.st_gid, found.st_mtime) == (5, 6, 1_000_000_000)
    assert fs.uuid == name and fs.statfs().f_bsize == 1024 and "/usr" not in fs
    assert image.stat().st_size == 64 << 20


def test_builds_that_fail(tree, tmp_path):
    image = tmp_path / "b.img"
    with pytest.raises(TypeError):
        Builder().write(image)
    with pytest.raises(FileNotFoundError) as raised:
        Builder().add_dir(tmp_path / "nothing").write(image)
    assert raised.value.filename == str(tmp_path / "nothing")
    for wrong in ({"features": "nonsense"}, {"block_size": 3}, {"headroom": -1}, {"size": 1, "headroom": 1},
                  {"uid_map": ["x"]}):
        with pytest.raises(ValueError):
            Builder(**wrong).add_dir(tree).write(image)
    with pytest.raises(OSError) as raised:
        Builder(size=1 << 20).add_dir(tree).write(image)
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError):
        Builder().add_tar(io.BytesIO(b"this is no archive" * 100)).write(image)
    with pytest.raises(OSError):
        Builder().add_oci(tree).write(image)
    assert not image.exists()
    Builder().add_dir(tree).write(image)
    with pytest.raises(FileExistsError):
        Builder().add_dir(tree).write(image)
    Builder().add_dir(tree).write(image, replace=True)


def test_progress_and_cancelling(tree, tmp_path):
    image = tmp_path / "b.img"
    reports = []
    Builder().add_dir(tree).write(image, progress=reports.append)
    assert reports[0].step == "reading" and reports[-1].step == "writing"
    assert reports[-1].files == reports[-1].total_files == 5
    with pytest.raises(InterruptedError):
        Builder().add_dir(tree).write(tmp_path / "c.img", progress=lambda _: False)

    class Stop(Exception):
        pass

    def stop(_):
        raise Stop

    with pytest.raises(Stop):
        Builder().add_dir(tree).write(tmp_path / "c.img", progress=stop)
    assert not (tmp_path / "c.img").exists()


def test_progress_and_cancelling_of_checks(tree, tmp_path):
    image = tmp_path / "b.img"
    Builder().add_dir(tree).write(image)
    reports = []
    assert extant_ext4.check(image, progress=lambda *now: reports.append(now)).clean
    name, done, total = reports[-1]
    assert name.startswith("pass ") and done == total
    reports.clear()
    extant_ext4.repair(image, dry_run=True, progress=lambda *now: reports.append(now))
    assert reports
    before = image.read_bytes()
    for work in (extant_ext4.check, extant_ext4.repair):
        with pytest.raises(InterruptedError):
            work(image, progress=lambda *_: False)

        def stop(*_):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work(image, progress=stop)
    assert image.read_bytes() == before


def test_progress_and_cancelling_of_mkfs_and_resize(image, tmp_path):
    new, reports = tmp_path / "new.img", []
    extant_ext4.mkfs(new, 64 << 20, progress=lambda *now: reports.append(now))
    assert reports[-1][0] == "writing" and reports[-1][1] == reports[-1][2] > 0
    reports.clear()
    done = extant_ext4.resize(image, 64 << 20, progress=lambda *now: reports.append(now))
    assert reports[-1][0] == "growing" and done.after == 64 << 20
    assert (done.moved_blocks, done.moved_inodes) == (0, 0)

    def stop(*_):
        raise ZeroDivisionError

    before = new.read_bytes()
    for error, progress in ((InterruptedError, lambda *_: False), (ZeroDivisionError, stop)):
        with pytest.raises(error):
            extant_ext4.mkfs(new, 32 << 20, replace=True, progress=progress)
        with pytest.raises(error):
            extant_ext4.resize(image, 96 << 20, progress=progress)
        assert new.read_bytes() == before and extant_ext4.check(image).clean
    assert extant_ext4.open(image)["/etc/motd"].read_text() == "hello\n"
    assert extant_ext4.resize(image, 96 << 20).after == 96 << 20


def test_a_signal_ends_long_work(image):
    """As Ctrl-C does: the handler of the signal raises. The image is on a disk that is slow."""

    class Slow(io.BytesIO):
        def read(self, size=-1):
            time.sleep(0.2)
            return super().read(size)

    class Alarm(Exception):
        pass

    def alarm(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            extant_ext4.check(Slow(image.read_bytes()), threads=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_mkfs(tmp_path):
    image, name = tmp_path / "e.img", uuid.uuid4()
    made = extant_ext4.mkfs(image, 64 << 20, label="scratch", features="quota,^resize_inode", uuid=str(name))
    assert made.blocks * made.block_size == 64 << 20 and made.uuid == name
    with extant_ext4.open(image, writable=True) as fs:
        assert fs.label == "scratch" and fs.uuid == name
        fs["/hello"].write_text("world\n")
    assert extant_ext4.check(image).clean
    with pytest.raises(FileExistsError):
        extant_ext4.mkfs(image, 64 << 20)
    assert extant_ext4.mkfs(image, 8 << 20, block_size=1024, replace=True).blocks == 8192
    with pytest.raises(OSError):
        extant_ext4.mkfs(tmp_path / "small.img", 1000)
    with pytest.raises(ValueError):
        extant_ext4.mkfs(tmp_path / "f.img", 1 << 20, features="nonsense")
    with pytest.raises(FileNotFoundError):
        extant_ext4.mkfs(tmp_path / "none/f.img", 64 << 20)
    assert not (tmp_path / "small.img").exists()


def damage(image):
    """Overwrites a link count: inode 2, the root, in the first table of the image."""
    with extant_ext4.open(image) as fs:
        blocks = fs["/"].stat().st_blksize
    data = bytearray(image.read_bytes())
    groups = blocks if blocks > 1024 else 2 * blocks
    table = int.from_bytes(data[groups + 8 : groups + 12], "little")
    inode = table * blocks + 256
    data[inode + 26] ^= 0x40
    image.write_bytes(data)


def test_check(image):
    report = extant_ext4.check(image)
    assert report.clean and report.exit_code == 0 and report.counts == {}
    assert report.stats.blocks == 8192 and report.stats.directories >= 5 and not report.stats.replayed
    damage(image)
    report = extant_ext4.check(image, threads=1)
    assert not report.clean and report.exit_code == 4
    finding = report.findings[0]
    assert finding.severity == "error" and finding.message and finding.rule and finding.code[:2].isalpha()
    assert 2 in [finding.ino for finding in report.findings]
    assert dataclasses.asdict(finding)["code"] == finding.code and report.counts[finding.code] >= 1
    with pytest.raises(FileNotFoundError):
        extant_ext4.check(image.with_name("nothing"))
    with pytest.raises(OSError):
        extant_ext4.check(io.BytesIO(b""))
    zeros = extant_ext4.check(io.BytesIO(bytes(1 << 20)))
    assert not zeros.clean and zeros.exit_code == 8 and zeros.findings[0].severity == "fatal"


def test_damage_of_a_file_is_an_error_of_its_path(image):
    with extant_ext4.open(image) as fs:
        stat = fs["/etc/motd"].stat()
        blocks = stat.st_blksize
    data = bytearray(image.read_bytes())
    table = int.from_bytes(data[blocks + 8 : blocks + 12], "little")
    at = table * blocks + (stat.st_ino - 1) * 256
    data[at + 4] ^= 0x40
    fs = extant_ext4.open(io.BytesIO(data))
    with pytest.raises(extant_ext4.CorruptError) as raised:
        fs["/etc/motd"].read_bytes()
    error = raised.value
    assert error.errno == 117 and error.filename == "/etc/motd" and error.ino == stat.st_ino
    assert "check" in str(error)
    with pytest.raises(extant_ext4.CorruptError):
        list(fs.scan())
    errors = []
    rows = [path for path, _, _ in fs.scan(onerror=errors.append)]
    assert "/usr/lib/large" in rows and "/etc/motd" not in rows
    assert {error.filename for error in errors} == {"/etc/motd", "/etc/issue"}


def test_resize(image):
    report = extant_ext4.resize(image, 64 << 20)
    assert (report.before, report.after) == (32 << 20, 64 << 20)
    assert image.stat().st_size == 64 << 20 and extant_ext4.check(image).clean
    assert extant_ext4.resize(image, "min").after < 32 << 20
    assert extant_ext4.open(image)["/etc/motd"].read_text() == "hello\n"
    with pytest.raises(OSError) as raised:
        extant_ext4.resize(image, 1 << 20)
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(ValueError):
        extant_ext4.resize(image, "large")
    with pytest.raises(FileNotFoundError):
        extant_ext4.resize(image.with_name("nothing"), "max")


def test_repair(image, tmp_path):
    assert extant_ext4.repair(image).fixes == ()
    damage(image)
    before = image.read_bytes()
    planned = extant_ext4.repair(image, dry_run=True)
    assert planned.fixes and planned.fixes[0].remedy and image.read_bytes() == before
    undo = tmp_path / "undo"
    done = extant_ext4.repair(image, undo)
    assert done.total == planned.total and done.changed_bytes and undo.exists()
    assert extant_ext4.check(image).clean
    assert extant_ext4.open(image)["/etc/motd"].read_text() == "hello\n"
    with pytest.raises(FileNotFoundError):
        extant_ext4.repair(tmp_path / "nothing")
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    with pytest.raises(extant_ext4.CorruptError):
        extant_ext4.repair(tmp_path / "zeros")


def test_a_container_image(tmp_path):
    """An OCI layout of one layer."""
    import hashlib
    import json

    blobs = tmp_path / "layout/blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    layer = tar_of(hello=b"from a layer\n").getvalue()
    diff = hashlib.sha256(layer).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = blob(json.dumps({
        "architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
    }).encode())
    kind = "application/vnd.oci.image"
    manifest = blob(json.dumps({
        "schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", **config},
        "layers": [{"mediaType": f"{kind}.layer.v1.tar", **blob(layer)}],
    }).encode())
    entry = {"mediaType": f"{kind}.manifest.v1+json", **manifest,
             "annotations": {"org.opencontainers.image.ref.name": "latest"}}
    (tmp_path / "layout/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (tmp_path / "layout/oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    Builder().add_oci(tmp_path / "layout", "latest").write(tmp_path / "o.img")
    assert extant_ext4.open(tmp_path / "o.img")["/hello"].read_text() == "from a layer\n"
