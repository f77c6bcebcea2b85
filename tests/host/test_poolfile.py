"""The life of a pool's file: whose it is, who removes it, and directories that cannot take it."""

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hisparse.errors import CorruptPoolError, StorageError
from hisparse.host import HostPool
from hisparse.host.geometry import Geometry
from hisparse.host.poolfile import private_file
from hisparse.layout import RowFormat

MakePool = Callable[..., HostPool]

LAYERS = [RowFormat("test", 576, 1152)]

# A process that holds a pool with a written page, says so, and waits to be ended.
HOLD = """
import sys
import numpy as np
from hisparse.host import HostPool
from hisparse.layout import RowFormat
pool = HostPool(8, 16, [RowFormat("test", 576, 1152)], "disk:" + sys.argv[1])
request = pool.admit(16)
request.extend(16)
pool.write(0, request.rows(np.arange(16)), np.ones((16, 1152), np.uint8))
print("ready", flush=True)
sys.stdin.read()
"""

# A pool whose process forks; the child closes it, then another pool is started beside it.
FORK = """
import os, sys
from hisparse.host import HostPool
from hisparse.layout import RowFormat
def start():
    return HostPool(4, 16, [RowFormat("test", 576, 1152)], "disk:" + sys.argv[1])
pool = start()
child = os.fork()
if child == 0:
    pool.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(os.listdir(sys.argv[1])), "file", flush=True)
start().close()
print(len(os.listdir(sys.argv[1])), "file", flush=True)
pool.admit(16).extend(16)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory that does not exist yet."""
    return tmp_path / "a" / "pools"


@pytest.fixture
def storage(directory: Path) -> str:
    """Return a storage on disk only."""
    return f"disk:{directory}"


@pytest.fixture
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that holds a pool in the directory."""
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def files(directory: Path) -> list[Path]:
    """Return what is in a directory."""
    return sorted(directory.iterdir())


def mode(path: Path) -> int:
    """Return the permission bits of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def test_file_and_directory_are_private(make_pool: MakePool, directory: Path) -> None:
    """Directory and file are made for their owner alone, and the file is gone after the close."""
    pool = make_pool(4, 16)
    [path] = files(directory)
    assert mode(directory) == 0o700
    assert mode(path) == 0o600
    assert path.read_bytes()[:12] == b"HISPARSE\x01\0\0\0"
    pool.close()
    assert files(directory) == []


def test_pools_share_a_directory(make_pool: MakePool, directory: Path) -> None:
    """Every pool has its own file, and closing one leaves the others'."""
    pools = [make_pool(4, 16) for _ in range(3)]
    paths = [pool._storage.path for pool in pools]
    assert files(directory) == sorted(paths)
    pools[1].close()
    assert files(directory) == sorted([paths[0], paths[2]])


def test_a_killed_process_leaves_nothing_for_long(
    holder: subprocess.Popen[str], make_pool: MakePool, directory: Path
) -> None:
    """A living pool's file stays at another start; once its process is killed, the next start removes it."""
    [left] = files(directory)
    pool = make_pool(4, 16)
    assert set(files(directory)) == {left, pool._storage.path}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert left.exists()
    pool = make_pool(4, 16)
    assert not left.exists()
    assert pool._storage.path.exists()


def test_an_ended_process_leaves_nothing(holder: subprocess.Popen[str], directory: Path) -> None:
    """A process that ends without closing its pool removes the file."""
    assert len(files(directory)) == 1
    holder.communicate("")
    assert holder.returncode == 0
    assert files(directory) == []


def test_a_dropped_pool_leaves_nothing(directory: Path) -> None:
    """A pool that is garbage takes its file with it."""
    pool = HostPool(4, 16, LAYERS, f"disk:{directory}")
    assert len(files(directory)) == 1
    del pool
    assert files(directory) == []


def test_other_files_are_left_alone(make_pool: MakePool, directory: Path, tmp_path: Path) -> None:
    """Files with other names or contents, locked ones, links and folders survive the removal of dead pools."""
    directory.mkdir(parents=True)
    foreign = directory / "notes.rows"
    foreign.write_bytes(b"HISPARSE")
    unlike = directory / "hisparse-pool-1-a.rows"
    unlike.write_bytes(b"something else")
    target = tmp_path / "target"
    target.write_bytes(b"HISPARSE")
    link = directory / "hisparse-pool-1-b.rows"
    link.symlink_to(target)
    folder = directory / "hisparse-pool-1-c.rows"
    folder.mkdir()
    pipe = directory / "hisparse-pool-1-d.rows"
    os.mkfifo(pipe)
    dead = directory / "hisparse-pool-1-e.rows"
    dead.write_bytes(b"HISPARSE and more")
    unborn = directory / "hisparse-pool-1-f.rows"
    unborn.touch()
    locked = directory / "hisparse-pool-1-g.rows"
    with locked.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        make_pool(4, 16).close()
        assert files(directory) == sorted([foreign, unlike, link, folder, pipe, locked])
    assert target.exists()


def test_a_forked_child_takes_nothing_away(directory: Path) -> None:
    """A child process that closes the pool it inherited leaves file and lock to its parent."""
    command = [sys.executable, "-c", FORK, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 file\n1 file\n", "")
    assert files(directory) == []


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("/proc/self/pools", "No such file or directory"),
        ("/sys/kernel", "Permission denied|Operation not permitted|Read-only file system"),
        ("x" * 300, "File name too long"),
    ],
)
def test_directories_that_cannot_be_used_are_named(tmp_path: Path, where: str, reason: str) -> None:
    """A path at or below a file, in a kernel's tree or too long is an error with path and reason."""
    (tmp_path / "file").touch()
    directory = tmp_path / where
    with pytest.raises(StorageError, match=rf"cannot use {directory} for a host pool: ({reason}); choose"):
        HostPool(4, 16, LAYERS, f"disk:{directory}")
    assert files(tmp_path) == [tmp_path / "file"]


def test_a_file_too_long_for_the_disk_is_named(directory: Path) -> None:
    """A pool longer than a file may be is refused with its size and the knob, and leaves no file."""
    layers = [RowFormat("test", 1, 1 << 40)]
    with pytest.raises(StorageError, match=r"cannot make .* of \d{19} B: .*; lower host_pool_bytes"):
        HostPool(2**20, 1, layers, f"disk:{directory}")
    assert files(directory) == []


def test_a_file_size_limit_is_an_error_and_not_a_signal(directory: Path) -> None:
    """Under a limit on file sizes the pool is refused with the reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot make .* of 18436096 B: File too large"):
            HostPool(1000, 16, LAYERS, f"disk:{directory}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(directory) == []


def test_a_failed_read_says_why(directory: Path) -> None:
    """What the system says, how much was there, or that it can be read by now: one error each, with the place."""
    file = private_file(directory, Geometry(4, 16, (1152,)))
    again = file.failed_read(4096, 1152)
    assert str(again).startswith(f"1152 B of {file.path} at 4096 could not be read, and now can; ")
    os.truncate(file.path, 5000)
    cut = file.failed_read(4096, 1152)
    assert isinstance(cut, CorruptPoolError)
    assert str(cut) == f"{file.path} was cut while it was read: 1152 B expected at 4096, 904 B found"
    with file.path.open("wb") as writable_only:
        os.dup2(writable_only.fileno(), file.fd)
    refused = file.failed_read(4096, 1152)
    assert str(refused).startswith(f"cannot read 1152 B of {file.path} at 4096: Bad file descriptor; ")
    assert not isinstance(refused, CorruptPoolError)
    file.close()


def test_room_is_taken_where_the_system_has_no_call_for_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``posix_fallocate`` and ``posix_fadvise`` a pool is made, and its blocks are there before a row is."""
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "posix_fadvise")
    file = private_file(directory, Geometry(64, 64, (1152,)))
    file.reserve(file.offsets[0], 1 << 20)
    assert file.path.stat().st_blocks * 512 >= 1 << 20
    file.close()
