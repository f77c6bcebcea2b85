"""The file of one pool: made, locked, given room, written and taken away."""

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path

from hisparse.errors import CorruptPoolError, DiskFullError, HiSparseError, StorageError
from hisparse.host.geometry import Geometry

MAGIC = b"HISPARSE"
VERSION = 1
PREFIX = "hisparse-pool-"
# magic, version, page rows, pages, layers; then the row bytes of each layer.
_HEADER = struct.Struct("<8sIIQI")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class PoolFile:
    """An open and locked file of known layout.

    The lock lasts as long as the process, so a later start can tell the file from one that a killed process
    left.  A private file goes away at `close`, at exit, or at the next start in the same directory.
    """

    def __init__(self, path: Path, fd: int, offsets: tuple[int, ...], *, keep: bool = False) -> None:
        """Take over an open and locked file.

        Args:
            path: Its name.
            fd: Its descriptor, closed at `close`.
            offsets: Where each region begins, and where the file ends.
            keep: Whether the file stays when it is closed.
        """
        self.path = path
        self.fd = fd
        self.offsets = offsets
        self.size_bytes = offsets[-1]
        identity = None if keep else os.fstat(fd).st_ino
        self._release = weakref.finalize(self, _release, path, fd, identity=identity, owner=os.getpid())

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return not self._release.alive

    def start(self, header: bytes, *, reserved: int = 0) -> None:
        """Give the file its length without its weight, and write its header last.

        Args:
            header: The first bytes.
            reserved: Bytes at the beginning that the disk sets aside at once.

        Raises:
            StorageError: The system refuses the size.
            DiskFullError: Not even that much fits.
        """
        remedy = "lower host_pool_bytes or use another directory"
        with explained(f"cannot make {self.path} of {self.size_bytes} B", remedy):
            os.ftruncate(self.fd, self.size_bytes)
            if reserved:
                self.reserve(0, reserved)
            os.pwrite(self.fd, header, 0)
            if hasattr(os, "posix_fadvise"):  # not on macOS
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def sync(self) -> None:
        """Wait until what was written is on the disk.

        Raises:
            StorageError: The disk refuses.
        """
        with explained(f"cannot write {self.path} through to the disk", "check the disk"):
            os.fdatasync(self.fd) if hasattr(os, "fdatasync") else os.fsync(self.fd)

    def map(self) -> mmap.mmap:
        """Map the whole file for reading at random: no read-ahead but the one asked for."""
        with explained(f"cannot map {self.path} of {self.size_bytes} B", "lower host_pool_bytes"):
            mapping = mmap.mmap(self.fd, self.size_bytes, prot=mmap.PROT_READ)
            mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    def check_intact(self) -> None:
        """Refuse a file that was cut or replaced, before a mapped access would end the process.  Reads only.

        A file whose name was merely removed still has its bytes and is served.

        Raises:
            CorruptPoolError: Its size differs, or another file has its name.
        """
        status = os.fstat(self.fd)
        if status.st_size != self.size_bytes:
            raise CorruptPoolError(
                f"{self.path} was cut or grown by someone else: {self.size_bytes} B expected, {status.st_size} B found"
            )
        if status.st_nlink == 0 and self.path.exists():
            raise CorruptPoolError(f"{self.path} was replaced by another file; the rows are lost with its name")

    def free_bytes(self) -> int:
        """Bytes the disk has for this process.  Reads only."""
        with explained(f"cannot ask for the free space of {self.path}"):
            status = os.fstatvfs(self.fd)
        return status.f_bavail * status.f_frsize

    def reserve(self, offset: int, num_bytes: int) -> None:
        """Have the disk set blocks aside.

        Raises:
            DiskFullError: It has none.
            StorageError: It refuses for another reason.
        """
        with explained(f"cannot reserve {num_bytes} B for {self.path}", "free disk space or move the pool"):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, offset, num_bytes)
            else:  # macOS
                self.write(offset, memoryview(bytes(num_bytes)))

    def write(self, offset: int, data: memoryview) -> None:
        """Write at an offset; a system call, not the mapping, so that a fault is an error and not a signal.

        Raises:
            DiskFullError: The disk has no room.
            StorageError: It refuses for another reason.
        """
        with explained(f"cannot write {len(data)} B to {self.path} at {offset}", "free disk space or move the pool"):
            while data:
                written = os.pwrite(self.fd, data, offset)
                data, offset = data[written:], offset + written

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read at an offset.

        Raises:
            StorageError: The disk fails.
            CorruptPoolError: The file ends before.
        """
        parts = []
        with explained(f"cannot read {num_bytes} B of {self.path} at {offset}", "check the disk"):
            while num_bytes:
                parts.append(os.pread(self.fd, num_bytes, offset))
                if not parts[-1]:
                    raise CorruptPoolError(f"{self.path} was cut: {num_bytes} B expected at {offset}, none found")
                offset, num_bytes = offset + len(parts[-1]), num_bytes - len(parts[-1])
        return b"".join(parts)

    def failed_read(self, offset: int, num_bytes: int) -> StorageError:
        """Read again what could not be read; returns the error that says why."""
        remedy = "end the requests that hold these rows, and check the disk"
        try:
            with explained(f"cannot read {num_bytes} B of {self.path} at {offset}", remedy):
                found = len(os.pread(self.fd, num_bytes, offset))
        except StorageError as error:
            return error
        if found < num_bytes:
            return CorruptPoolError(
                f"{self.path} was cut while it was read: {num_bytes} B expected at {offset}, {found} B found"
            )
        return StorageError(f"{num_bytes} B of {self.path} at {offset} could not be read, and now can; {remedy}")

    def close(self) -> None:
        """Close the file, and remove a private one; a child process that inherited it only closes it."""
        self._release()


def private_file(directory: Path, geometry: Geometry) -> PoolFile:
    """Make a file that ends with its pool, sparse, in `directory`, which is made if missing.

    Raises:
        StorageError: The directory or the file cannot be made, locked or sized.
        DiskFullError: Not even the header fits.
    """
    header = _header(geometry)
    with explained(f"cannot use {directory} for a host pool"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(directory)
        path, fd = _create(directory)
    file = PoolFile(path, fd, geometry.region_offsets(len(header)))
    try:
        file.start(header)
    except OSError:
        file.close()
        raise
    return file


def _header(geometry: Geometry) -> bytes:
    row_bytes = geometry.row_bytes
    fixed = _HEADER.pack(MAGIC, VERSION, geometry.page_rows, geometry.pages, len(row_bytes))
    return fixed + struct.pack(f"<{len(row_bytes)}Q", *row_bytes)


def _create(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}.rows"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Another start may have taken the file for a dead one before it was locked.
            if os.fstat(fd).st_nlink:
                return path, fd
        except OSError:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        os.close(fd)


def _sweep(directory: Path) -> None:
    """Remove the pool files in a directory whose processes are gone."""
    for path in directory.glob(f"{PREFIX}*.rows"):
        # A file that cannot be opened or is locked belongs to someone else or to a living pool.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Zeros: its process was killed before the header was written.
                if os.pread(fd, len(MAGIC), 0) in (b"", bytes(len(MAGIC)), MAGIC):
                    path.unlink()
            finally:
                os.close(fd)


def _release(path: Path, fd: int, *, identity: int | None, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            if identity is None:
                # A mapping has a descriptor of its own, which would keep the lock.
                fcntl.flock(fd, fcntl.LOCK_UN)
            # The name may be gone, or belong to another file by now.
            elif path.stat().st_ino == identity:
                path.unlink()
    os.close(fd)


@contextlib.contextmanager
def explained(what: str, remedy: str = "choose another directory") -> Iterator[None]:
    """Turn an operating-system error into this package's own, with the reason and what to do."""
    try:
        yield
    except HiSparseError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in _FULL else StorageError
        raise kind(f"{what}: {error.strerror or error}; {remedy}") from error
