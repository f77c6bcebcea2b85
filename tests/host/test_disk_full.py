"""A disk that fills up, for real: a file system of a few mebibytes, under private and kept pools."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hisparse.errors import DiskFullError
from hisparse.host import HostPool
from hisparse.layout import RowFormat

# Runs in a process of its own, with the directory of a small file system as its argument.
FILL = """
import os, sys
import numpy as np
from hisparse.errors import DiskFullError
from hisparse.host import HostPool
from hisparse.layout import RowFormat

def refused(act, *says):
    try:
        act()
    except DiskFullError as error:
        assert all(word in str(error) for word in says), str(error)
    else:
        raise SystemExit(f"{act} found room on a full disk")

def counts():
    pool.check()
    return pool.free_pages, pool.used_pages, pool.reserved_pages

directory = sys.argv[1]
room = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
page_bytes = 64 * 1152 * 2
pool = HostPool(10 * room // page_bytes, 64, [RowFormat("test", 576, 1152)] * 2, "disk:" + directory)
refused(lambda: pool.admit(2 * room // (2 * 1152)), "needs", "B free", "max_positions", directory)
assert counts() == (pool.pages, 0, 0)

request = pool.admit(room // 2 // (2 * 1152))
half = request.promised_pages
request.extend(64)
data = np.random.default_rng(0).integers(0, 256, (64, 1152), dtype=np.uint8)
pool.write(0, request.rows(np.arange(64)), data)

ballast = os.open(directory + "/ballast", os.O_RDWR | os.O_CREAT)
left = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
os.posix_fallocate(ballast, 0, left - (left % 4096))
for _ in range(3):
    refused(lambda: request.extend(request.max_positions), "cannot reserve", "No space left", "free disk space")
    assert request.length == 64
    assert counts() == (pool.pages - half, 1, half - 1)
refused(lambda: pool.rearrange([request], [0, 0]), "B free")
out = np.empty((64, 1152), np.uint8)
pool.read(0, request.rows(np.arange(64)), out)
assert (out == data).all()

os.unlink(directory + "/ballast")
os.close(ballast)
request.extend(request.max_positions)
rows = request.rows(np.arange(request.length))
pool.write(1, rows, np.full((rows.size, 1152), 7, np.uint8))
assert counts() == (pool.pages - half, half, 0)
pool.close()
assert os.listdir(directory) == []

full = os.open(directory + "/ballast", os.O_RDWR | os.O_CREAT)
left = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
os.posix_fallocate(full, 0, left)
refused(lambda: HostPool(4, 64, [RowFormat("test", 576, 1152)], "disk:" + directory), "cannot make", "No space left")
assert os.listdir(directory) == ["ballast"]
print("done")
"""

# The same for a kept pool, which is opened, filled, and opened again on a disk without room.
KEEP = """
import os, sys
import numpy as np
from hisparse.errors import DiskFullError
from hisparse.host import HostPool
from hisparse.layout import RowFormat, page_keys

directory = sys.argv[1]
layers = [RowFormat("test", 576, 1152)] * 2
data = np.random.default_rng(0).integers(0, 256, (64, 1152), dtype=np.uint8)

def start():
    return HostPool(500, 64, layers, "disk:" + directory + "/pool?persist&fsync")

def keys(document):
    tokens = np.full(64 * 8, document)
    return page_keys(tokens, 64, model="m", revision=None, dtype="u1", row_format=layers)

def write(request, document):
    while request.length < request.max_positions:
        request.extend(request.length + 64)
        for layer in range(2):
            pool.write(layer, request.rows(np.arange(request.length - 64, request.length)), data + np.uint8(document))
    request.publish(keys(document))

def right(document):
    request = pool.admit(64 * 8, keys=keys(document))
    assert request.length == 64 * 8
    out = np.empty((64 * 8, 1152), np.uint8)
    for layer in range(2):
        pool.read(layer, request.rows(np.arange(request.length)), out[: request.length])
        assert (out[: request.length].reshape(-1, 64, 1152) == data + np.uint8(document)).all()
    request.close()

def fill():
    ballast = os.open(directory + "/ballast", os.O_RDWR | os.O_CREAT)
    left = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
    os.posix_fallocate(ballast, 0, left)
    os.close(ballast)

def refused(act):
    try:
        act()
    except DiskFullError:
        return
    raise SystemExit(f"{act} found room on a full disk")

pool = start()
first = pool.admit(64 * 8)
write(first, 1)
second = pool.admit(64 * 8)
second.extend(64 * 7)
third = pool.admit(64 * 8)
fill()
refused(lambda: pool.admit(64 * 400))
first.close()
write(third, 3)
third.close()
pool.check()
assert pool.recovery.ignored == {}, pool.recovery
pool.close()

pool = start()
assert 8 <= pool.recovery.pages <= 16 and pool.recovery.ignored.keys() <= {"orphaned"}, pool.recovery
right(3)
fourth = pool.admit(64 * 8)
write(fourth, 4)
fourth.close()
right(4)
pool.check()
pool.close()
os.unlink(directory + "/ballast")
pool = start()
assert pool.recovery.pages >= 8 and pool.recovery.ignored.keys() <= {"orphaned"}, pool.recovery
right(4)
pool.close()

fill()
refused(lambda: HostPool(500, 64, layers, "disk:" + directory + "/other?persist"))
assert os.listdir(directory + "/other") == []
print("done")
"""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the file system is wanted, the folder in it is a private one

# Mounts a small file system in a mount namespace of its own, where the rest of the machine does not see it.
MOUNT = 'mount -t tmpfs -o size=16m,mode=700 none "$1" && exec "$2" -c "$3" "$1"'


def run_on_small_disk(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a script on a small file system, as root of the machine or of a user namespace."""
    arguments = ["sh", "-c", MOUNT, "sh", str(directory), sys.executable, script]
    for unshare in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
            return subprocess.run([*unshare, *arguments], capture_output=True, text=True, check=False)
    # No namespaces: containers that forbid them give shared memory a small file system of its own.
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    assert free < 1 << 28, f"a full disk needs the right to mount, or less than 256 MiB in {SHARED_MEMORY}"
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as small:
        return subprocess.run([sys.executable, "-c", script, small], capture_output=True, text=True, check=False)


def test_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """Making, admitting, growing and repeating on a full disk are refused; nothing changes, and all goes on."""
    done = run_on_small_disk(FILL, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_kept_pool_goes_on_without_room(tmp_path: Path) -> None:
    """On a full disk requests that run write and publish, a second start finds the pages, and a first is refused."""
    done = run_on_small_disk(KEEP, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_admission_asks_the_disk(tmp_path: Path) -> None:
    """A request that the pool could take and the disk could not is refused with both numbers."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    page_rows, row_bytes = 1 << 18, 1 << 12
    pages = free // (page_rows * row_bytes) + 2
    needed = pages * page_rows * row_bytes
    with HostPool(pages, page_rows, [RowFormat("test", 1, row_bytes)], f"disk:{tmp_path}") as pool:
        with pytest.raises(DiskFullError, match=rf"needs {needed} B more for {pages} pages, .* B free"):
            pool.admit(pages * page_rows)
        assert pool.free_pages == pages
        pool.check()
