"""Standard output and standard error that may be full, closed or read by nobody."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from hisparse.cli.failures import BAD_INPUT, OUTPUT_CUT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LAST_STANDARD_DESCRIPTOR = 2


class OutputError(Exception):
    """Standard output took no more; not an `OSError`, so that nobody on the way takes it for one of its own."""

    def __init__(self, cause: OSError) -> None:
        """Keep the reason of `cause`."""
        super().__init__(cause.strerror or str(cause))
        self.is_cut = cause.errno == errno.EPIPE


class ReportingFile(io.FileIO):
    """A file whose failing writes are an `OutputError`, whoever wrote."""

    def write(self, data: "ReadableBuffer", /) -> Any:
        """Write and return how much; None if it would block."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class ForgivingFile(io.FileIO):
    """A file that drops what it can't take: a run does not end because nobody can be told about it."""

    def write(self, data: "ReadableBuffer", /) -> Any:
        """Write and return how much; None if it would block."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def guarded_output() -> Iterator[None]:
    """While the block runs, failing writes to standard output end the process with a sentence and an exit code.

    `OUTPUT_CUT` and no word if the reader has gone (``| head``), else `BAD_INPUT`. Failing writes to standard error
    are dropped. Characters that an encoding lacks become escapes. Streams that are no files stay as they are.
    """
    _occupy_closed_descriptors()
    before = sys.stdout, sys.stderr
    try:
        _flush(sys.stdout)
        sys.stdout, sys.stderr = _over(sys.stdout, ReportingFile), _over(sys.stderr, ForgivingFile)
        try:
            yield
        finally:
            _flush(sys.stdout)
    except OutputError as error:
        _discard_rest(before[0])
        if error.is_cut:
            sys.exit(OUTPUT_CUT)
        if sys.stderr is not None:
            sys.stderr.write(f"error: standard output can't be written: {error}\n")
        sys.exit(BAD_INPUT)
    finally:
        sys.stdout, sys.stderr = before


def _over(stream: TextIO | None, file: type[io.FileIO]) -> Any:
    """A text stream like `stream` over the same descriptor, opened as `file`."""
    try:
        descriptor = stream.fileno() if stream is not None else None
    except OSError:
        descriptor = None
    if stream is None or descriptor is None:
        return stream
    stream.flush()
    raw = file(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=bool(stream.line_buffering),
    )


def _flush(stream: TextIO | None) -> None:
    if stream is None:
        raise OutputError(OSError(errno.EBADF, "it is closed"))
    stream.flush()


def _discard_rest(stream: TextIO | None) -> None:
    """Let what is still buffered vanish, or Python would fail on it once more when it exits."""
    with suppress(OSError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]  # a closed stream is None: AttributeError
        os.close(null)


def _occupy_closed_descriptors() -> None:
    """Keep the next file opened, perhaps a pool, from becoming standard output or standard error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD_DESCRIPTOR:
        pass
    os.close(descriptor)
