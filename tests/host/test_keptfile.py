"""The file of a kept pool: found again, set aside, replaced, locked, and only its owner's."""

import fcntl
import logging
import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hisparse.errors import SettingError, StorageError
from hisparse.host import keptfile
from hisparse.host.geometry import Geometry
from hisparse.host.header import Header, decode
from hisparse.host.keptfile import KeptFile, kept_path, open_kept
from hisparse.host.place import Place
from hisparse.host.poolfile import private_file

GEOMETRY = Geometry(8, 4, (97, 48))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place whose directory does not exist yet."""
    return Place(tmp_path / "a" / "pools", persist=True)


def opened(place: Place, geometry: Geometry = GEOMETRY, identity: str = "me") -> KeptFile:
    """Open and close a kept file; returns what was open."""
    kept = open_kept(place, geometry, identity)
    kept.file.close()
    return kept


def spoil(path: Path, at: int, data: bytes) -> None:
    """Write bytes into a file."""
    with path.open("rb+") as file:
        file.seek(at)
        file.write(data)


def test_a_kept_file_stays_and_is_found_again(place: Place) -> None:
    """The file outlives its close, private to its owner, and is opened again with the same stamp."""
    first = opened(place)
    path = first.file.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size == first.file.size_bytes
    second = opened(place)
    assert (second.refused, second.header) == ("", first.header)
    assert second.file.offsets == first.file.offsets


def test_other_identities_have_other_files(place: Place) -> None:
    """Two models in one directory keep a file each, also while both are open, and odd texts are texts."""
    names = ["", "me", "you", "me\n", "ä\udc80", "../x"]
    kept = [open_kept(place, GEOMETRY, name) for name in names]
    assert place.directory is not None
    assert len(list(place.directory.iterdir())) == len({one.file.path for one in kept}) == len(names)
    for one, name in zip(kept, names, strict=True):
        one.file.close()
        assert opened(place, identity=name).header == one.header


def test_private_pools_leave_kept_files_alone(place: Place) -> None:
    """A pool that ends with its process, started in the same directory, removes no kept file."""
    path = opened(place).file.path
    private_file(path.parent, GEOMETRY).close()
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("foreign", "begins with b'notapool'"),
        ("version", "is of version 2, expected 1"),
        ("damaged", "its header is damaged"),
        ("identity", r"has rows of 'me', expected 'you'"),
        ("geometry", "has 8 pages of 4 rows in 2 layers of 48 and 97 B, expected 9 pages"),
        ("truncated", r"has 100\d\d B, expected \d+"),
    ],
)
def test_what_cannot_be_used_is_set_aside(
    place: Place, reason: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of another kind is renamed with a warning that says why, byte for byte, and a new one begins."""
    path = opened(place).file.path
    geometry, identity = GEOMETRY, "me"
    match reason:
        case "foreign":
            path.write_bytes(b"notapool" * 1000)
        case "version":
            spoil(path, 8, b"\x02")
        case "damaged":
            spoil(path, 40, b"\xff")
        case "identity":
            identity = "you"
            path = path.rename(kept_path(path.parent, "you"))
        case "geometry":
            geometry = replace(GEOMETRY, pages=9)
        case "truncated":
            os.truncate(path, 10_010)
    was = path.read_bytes()
    with caplog.at_level(logging.WARNING, "hisparse"):
        kept = opened(place, geometry, identity)
    assert kept.refused == reason
    aside = path.with_suffix(".aside")
    assert aside.read_bytes() == was
    [record] = caplog.records
    assert record.getMessage().startswith(f"{path} cannot be used: it")
    assert str(aside) in record.getMessage()
    assert re.search(says, record.getMessage())
    caplog.clear()
    assert opened(place, geometry, identity).refused == ""
    assert caplog.records == []


def test_a_second_file_is_not_set_aside(place: Place) -> None:
    """With one set aside already nothing is renamed: the start is refused, both files and the option named."""
    path = opened(place).file.path
    opened(place, replace(GEOMETRY, pages=9))
    was = path.read_bytes()
    with pytest.raises(StorageError, match=rf"{path} cannot be used: .*\.aside was set aside before.*add replace"):
        opened(place)
    assert path.read_bytes() == was
    assert opened(place, replace(GEOMETRY, pages=9)).refused == ""


def test_replace_overwrites(place: Place) -> None:
    """With ``replace`` a file that cannot be used is made anew under its name, and nothing is set aside."""
    first = opened(place)
    second = opened(replace(place, replace=True), replace(GEOMETRY, pages=9))
    assert second.refused == "geometry"
    assert second.header.stamp != first.header.stamp
    assert [*second.file.path.parent.iterdir()] == [second.file.path]


@pytest.mark.parametrize("left", [b"", bytes(1), bytes(20_000), b"HISPNEW." + b"half" * 50, bytes(512) + b"rest"])
def test_an_unfinished_file_is_finished(place: Place, left: bytes) -> None:
    """What a process leaves that is killed before the header is on the disk is made anew, and nothing is set aside."""
    path = opened(place).file.path
    path.write_bytes(left)
    kept = opened(place)
    assert kept.refused == ""
    assert [*path.parent.iterdir()] == [path]
    assert path.stat().st_size == kept.file.size_bytes


def test_a_header_counts_only_when_all_of_it_is_on_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any write or sync of the first start, the next one finds an unfinished file or a whole one."""
    step = None

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("posix_fallocate", "pwrite", "fdatasync", "fsync"):
        with monkeypatch.context() as patch:
            # As after a kill, the name stays.
            patch.setattr(Path, "unlink", lambda *_args, **_settings: None)
            patch.setattr(os, name, stop)
            with pytest.raises(KeyboardInterrupt):
                opened(place, identity=name)
        step = opened(place, identity=name)
        assert step.refused == ""
    assert step is not None
    assert not [*step.file.path.parent.glob("*.aside")]


def test_every_changed_byte_of_the_header_is_noticed() -> None:
    """No single changed byte leaves a header that can be used."""
    header = Header(GEOMETRY, "model, main, bfloat16", 7)
    data = header.encode()
    assert decode(data) == header
    assert header.refusal(data) == ("", "")
    for at in range(len(data)):
        for mask in (1, 128, 255):
            changed = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            assert header.refusal(changed)[0] in {"foreign", "version", "damaged"}
        assert header.refusal(data[:at])[0] in {"foreign", "version", "damaged"}


def test_one_pool_at_a_time_has_a_file(place: Place) -> None:
    """A second opening is refused with the path and what to do, and changes nothing; after the close it succeeds."""
    kept = open_kept(place, GEOMETRY, "me")
    with pytest.raises(StorageError, match=rf"{kept.file.path} is in use by another pool.*an identity of its own"):
        open_kept(place, GEOMETRY, "me")
    mapping = kept.file.map()
    kept.file.close()
    assert opened(place).header == kept.header
    mapping.close()


def test_a_file_that_is_exchanged_while_it_is_locked_is_not_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who locks a file that another start has just renamed tries again with the one that has the name now."""
    path = opened(place).file.path
    lock = fcntl.flock
    renamed = []

    def flock(fd: int, operation: int) -> None:
        lock(fd, operation)
        if not renamed:
            renamed.append(path.rename(path.with_suffix(".aside")))

    monkeypatch.setattr(keptfile.fcntl, "flock", flock)
    kept = open_kept(place, GEOMETRY, "me")
    assert os.fstat(kept.file.fd).st_ino == path.stat().st_ino
    kept.file.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_what_others_can_write_is_not_used(place: Place, mode: int) -> None:
    """A directory or file that others can write is refused with its mode, unless that is allowed."""
    path = opened(place).file.path
    for spoiled, right in ((path.parent, 0o700), (path, 0o600)):
        spoiled.chmod(mode)
        with pytest.raises(StorageError, match=rf"^{spoiled} has mode {mode:#o}: .*chmod go-w.*untrusted"):
            opened(place)
        assert opened(replace(place, untrusted=True)).refused == ""
        spoiled.chmod(right)
    assert opened(place).refused == ""


def test_what_belongs_to_others_is_not_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another user is refused with both users, unless that is allowed."""
    opened(place)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(StorageError, match=rf"^{place.directory} belongs to user {user}, expected {user + 1}; "):
        opened(place)
    assert opened(replace(place, untrusted=True)).refused == ""


def test_links_folders_and_pipes_are_not_followed(place: Place, tmp_path: Path) -> None:
    """Under the file's name only a file is used; what a link points to is left alone."""
    path = opened(place).file.path
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    for make in (lambda: path.symlink_to(target), path.mkdir, lambda: os.mkfifo(path)):
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        make()
        with pytest.raises(StorageError, match=str(path.parent)):
            opened(place)
    assert target.read_bytes() == b"precious"


def test_an_identity_longer_than_a_header_is_refused(place: Place) -> None:
    """An identity that no header holds is an error of the setting, and makes no file."""
    with pytest.raises(SettingError, match="at most 1048576; shorten it"):
        opened(place, identity="x" * 2_000_000)
    assert place.directory is not None
    assert not place.directory.exists()
    long = opened(place, identity="x" * 100_000)
    assert opened(place, identity="x" * 100_000).header == long.header
