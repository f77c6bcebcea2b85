"""Opening the file of a pool that outlives its process: found again, made, set aside or replaced."""

import fcntl
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hisparse.errors import SettingError, StorageError
from hisparse.host.directory import ENTRY_BYTES
from hisparse.host.geometry import ALIGNMENT_BYTES, Geometry
from hisparse.host.header import MAGIC, MAX_HEADER_BYTES, Header, decode
from hisparse.host.place import Place
from hisparse.host.poolfile import PoolFile, explained

PREFIX = "hisparse-kept-"
# What a header begins with until all of it is on the disk.
UNFINISHED = b"HISPNEW."
_SECTOR_BYTES = 512
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

logger = logging.getLogger("hisparse")


@dataclass(frozen=True, slots=True)
class KeptFile:
    """An open file that stays when it is closed.

    Attributes:
        file: The file, locked.
        header: Its header, with its own stamp.
        directory_offset: Where the page directory begins in it.
        refused: Why the file that was there could not be used, in one word; empty where it could.
    """

    file: PoolFile
    header: Header
    directory_offset: int
    refused: str = ""


def kept_path(directory: Path, identity: str) -> Path:
    """Return the file of the rows of `identity`: others have files of their own."""
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    return directory / f"{PREFIX}{digest[:16]}.rows"


def open_kept(place: Place, geometry: Geometry, identity: str) -> KeptFile:
    """Open the file of `identity` in the directory of `place`, or make it.

    A file that is there and cannot be used is renamed, once, so that nothing is lost unseen; ``replace``
    overwrites it.

    Raises:
        StorageError: Directory or file cannot be used, belong to somebody else or are in use by another process,
            or a file that cannot be used is there and another has been set aside before.
        DiskFullError: There is no room for the header and the page directory.
        SettingError: The identity is longer than a header may be.
    """
    if place.directory is None:
        raise SettingError('rows in memory end with their process; use "disk:DIR?persist"')
    wanted = Header(geometry, identity)
    if len(wanted.encode()) > MAX_HEADER_BYTES:
        raise SettingError(f"identity and layers take {len(wanted.encode())} B, at most {MAX_HEADER_BYTES}; shorten it")
    path = kept_path(place.directory, identity)
    with explained(f"cannot use {place.directory} for a host pool"):
        place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(place.directory, place.directory.stat(), place, is_wanted=stat.S_ISDIR)
        fd = _locked(path, place)
    try:
        kept, reason, clause = _found(path, fd, wanted)
        if kept is None and reason:
            fd = _cleared(path, fd, clause, place=place)
    except BaseException:
        os.close(fd)
        raise
    return kept or _made(path, fd, wanted, refused=reason)


def _found(path: Path, fd: int, wanted: Header) -> tuple[KeptFile | None, str, str]:
    """Return the file as it is, or None and why it cannot be used; a new one needs no reason."""
    with explained(f"cannot read {path}"):
        size_bytes = os.fstat(fd).st_size
        data = os.pread(fd, MAX_HEADER_BYTES, 0)
    if data[: len(UNFINISHED)] == UNFINISHED or not any(data[:_SECTOR_BYTES]):
        return None, "", ""
    reason, clause = wanted.refusal(data)
    if reason:
        return None, reason, clause
    header, offset, offsets = _layout(decode(data))
    if size_bytes != offsets[-1]:
        return None, "truncated", f"it has {size_bytes} B, expected {offsets[-1]}"
    return KeptFile(PoolFile(path, fd, offsets, keep=True), header, offset), "", ""


def _layout(header: Header) -> tuple[Header, int, tuple[int, ...]]:
    """Return the header, where the page directory begins, and where the regions do."""
    offset = -(-len(header.encode()) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return header, offset, header.geometry.region_offsets(offset + header.geometry.pages * ENTRY_BYTES)


def _made(path: Path, fd: int, wanted: Header, *, refused: str) -> KeptFile:
    """Make a new file of one that is empty, was not finished, or may be overwritten."""
    header, offset, offsets = _layout(replace(wanted, stamp=secrets.randbits(64)))
    file = PoolFile(path, fd, offsets, keep=True)
    try:
        with explained(f"cannot empty {path}"):
            os.ftruncate(fd, 0)
        # The directory has its room from the start, so a full disk stops no publication half way.
        data = header.encode()
        file.start(UNFINISHED + data[len(MAGIC) :], reserved=offset + header.geometry.pages * ENTRY_BYTES)
        file.sync()
        file.write(0, memoryview(MAGIC))
        file.sync()
        _sync_names(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        file.close()
        raise
    return KeptFile(file, header, offset, refused)


def _cleared(path: Path, fd: int, clause: str, *, place: Place) -> int:
    """Set a file that cannot be used aside, unless it may be replaced; returns a descriptor for the new one."""
    if place.replace:
        logger.warning("%s cannot be used: %s; it is replaced", path, clause)
        return fd
    aside = path.with_suffix(".aside")
    if aside.exists():
        raise StorageError(
            f"{path} cannot be used: {clause}; {aside} was set aside before. "
            "Remove either, or add replace to overwrite the first"
        )
    with explained(f"cannot set {path} aside"):
        path.rename(aside)
        new = _locked(path, place)
    logger.warning("%s cannot be used: %s; it is kept as %s, and a new one begins", path, clause, aside)
    os.close(fd)
    return new


def _locked(path: Path, place: Place) -> int:
    """Open or create a file and lock it; returns its descriptor."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            status = os.fstat(fd)
            _check_owner(path, status, place, is_wanted=stat.S_ISREG)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"{path} is in use by another pool: one at a time may have it; "
                    "use another directory, or give each an identity of its own"
                ) from error
            # Whoever had it until now may have renamed or removed it.
            if path.exists() and path.stat().st_ino == status.st_ino:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _check_owner(path: Path, status: os.stat_result, place: Place, *, is_wanted: Callable[[int], bool]) -> None:
    """Refuse what another user owns or can write: its rows would be whatever that user likes.

    Raises:
        StorageError: It is, and the place does not allow it, or it is of another kind.
    """
    if not is_wanted(status.st_mode):
        raise StorageError(f"{path} is of another kind; remove it or use another directory")
    if place.untrusted:
        return
    if status.st_uid != os.geteuid():
        raise StorageError(
            f"{path} belongs to user {status.st_uid}, expected {os.geteuid()}; use another directory, or add untrusted"
        )
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise StorageError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):#o}: other users can write it; "
            "take that right away (chmod go-w), or add untrusted"
        )


def _sync_names(directory: Path) -> None:
    with explained(f"cannot write {directory} through to the disk"):
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
