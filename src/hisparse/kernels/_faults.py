"""Checks of a step's input, and the sentence for each fault.  Shared by all backends."""

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, HotBufferError, InputError, PositionError
from hisparse.kernels.addressing import PageTable
from hisparse.kernels.backend import MAX_RESIDENT_ROW, ResidencySettings
from hisparse.kernels.resolution import PADDING

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def describe(value: object) -> str:
    """Return dtype and shape of an array as ``int32[2, 4]``, or the type of anything else."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__


def check_array(name: str, value: object, shape: tuple[int, ...]) -> None:
    """Raise ArrayError unless `value` is an int32 array of this shape."""
    if isinstance(value, np.ndarray) and value.shape == shape and (value.dtype is _INT32 or value.dtype == _INT32):
        return
    raise ArrayError(f"{name} must be int32[{', '.join(map(str, shape))}], got {describe(value)}")


def check_requests(requests: object, settings: ResidencySettings) -> None:
    """Raise unless `requests` is int32 ``[B]``, each in range or -1, equal ones next to each other."""
    if not isinstance(requests, np.ndarray) or requests.dtype != _INT32 or requests.ndim != 1:
        raise ArrayError(f"requests must be int32[B], got {describe(requests)}")
    numbers = requests.tolist()
    if len(numbers) == 1 and PADDING <= numbers[0] < settings.max_requests:
        return
    lowest, highest = min(numbers, default=0), max(numbers, default=0)
    if len(set(numbers)) == len(numbers) and lowest >= PADDING and highest < settings.max_requests:
        return
    seen: set[int] = set()
    previous = PADDING
    for b, request in enumerate(numbers):
        if request not in (previous, PADDING):
            check_request(request, settings, name=f"requests[{b}]")
            if request in seen:
                raise PositionError(
                    f"requests[{b}] repeats request {request} after another one: rows of one request must be neighbours"
                )
            seen.add(request)
        previous = request


def check_request(request: int, settings: ResidencySettings, *, name: str = "request") -> None:
    """Raise PositionError unless the request number is in range."""
    if not 0 <= request < settings.max_requests:
        raise PositionError(
            f"{name} is {request}, expected 0 to {settings.max_requests - 1}; raise max_requests for more"
        )


def check_positions(positions: object, settings: ResidencySettings) -> NDArray[np.int64]:
    """Return `positions` as int64 ``[M]``; raise unless integers of one dimension, all in range."""
    array = np.asarray(positions)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArrayError(f"positions must be integers [M], got {describe(array)}")
    bad = np.flatnonzero((array < 0) | (array >= settings.max_positions))
    if bad.size:
        raise PositionError(
            f"positions[{bad[0]}] is {array[bad[0]]}, expected 0 to {settings.max_positions - 1}; "
            "raise max_positions for longer requests"
        )
    return array.astype(np.int64)


def check_pages(pages: PageTable, length: int, settings: ResidencySettings) -> None:
    """Raise ArrayError unless `pages` covers `length` positions of every request."""
    first_rows = pages.first_rows
    requests, columns = first_rows.shape
    if requests >= settings.max_requests and columns * pages.page_rows >= length and first_rows.dtype == _INT64:
        return
    needed = -(-length // pages.page_rows)
    raise ArrayError(f"first_rows must be int64[{settings.max_requests}, {needed}] or more, got {describe(first_rows)}")


def find_unheld(requests: NDArray[np.int32], topk: NDArray[np.int32], length: int) -> InputError | None:
    """Return the error if a request selects a position that it does not have, or None.  Reads only."""
    newest = topk[requests != PADDING].max(initial=PADDING)
    if newest < length:
        return None
    return PositionError(f"position {newest} was selected, but requests hold {length} rows")


def resident_rows(pages: NDArray[np.int32], positions: NDArray[np.int32], page_rows: int) -> NDArray[np.int64]:
    """Return the device row of each position of one request, -1 where its page is not resident."""
    page_idx, offset = np.divmod(positions.astype(np.int64), page_rows)
    page = pages[page_idx].astype(np.int64)
    return np.where(page < 0, -1, page * page_rows + offset)


def find_fault(
    requests: NDArray[np.int32],
    topk: NDArray[np.int32],
    resident_pages: NDArray[np.int32] | None,
    *,
    settings: ResidencySettings,
) -> InputError | None:
    """Return the error for the first fault among the values of a step, or None.  Reads only."""
    live = requests != PADDING
    bad = np.argwhere(live[:, None] & ((topk < PADDING) | (topk >= settings.max_positions)))
    if bad.size:
        b, j = bad[0]
        return PositionError(
            f"topk[{b}, {j}] is position {topk[b, j]} of request {requests[b]}, expected -1 (padding) or "
            f"0 to {settings.max_positions - 1}; raise max_positions for longer requests"
        )
    ordered = np.sort(topk, axis=1)
    twice = np.argwhere(live[:, None] & (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PADDING))
    if twice.size:
        b, j = twice[0]
        return PositionError(
            f"topk[{b}] selects position {ordered[b, j]} of request {requests[b]} twice; "
            "positions must be unique within a row"
        )
    for request in dict.fromkeys(requests[live].tolist()):
        selected = np.unique(topk[requests == request])
        pages = None if resident_pages is None else resident_pages[request]
        fault = _find_request_fault(request, selected[selected != PADDING], pages, settings=settings)
        if fault is not None:
            return fault
    return None


def _find_request_fault(
    request: int, selected: NDArray[np.int32], pages: NDArray[np.int32] | None, *, settings: ResidencySettings
) -> InputError | None:
    """Return the error if a resident row is out of range or the union does not fit the hot buffer."""
    if pages is not None:
        rows = resident_rows(pages, selected, settings.page_rows)
        if (rows > MAX_RESIDENT_ROW).any():
            return PositionError(
                f"resident_pages[{request}] puts a selected position in row {rows.max()}, "
                f"expected at most {MAX_RESIDENT_ROW}; lower the device page numbers"
            )
        selected = selected[rows < 0]
    if selected.size > settings.hot_slots:
        return HotBufferError(
            f"request {request} selects {selected.size} different rows in one step, hot_slots is "
            f"{settings.hot_slots}; raise hot_slots to at least {selected.size}"
        )
    return None
