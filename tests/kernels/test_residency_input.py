"""Bad input gets a sentence and changes nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import assert_same_resolution, int32, snapshot

from hisparse.errors import ArrayError, HotBufferError, InputError, PositionError, SettingError
from hisparse.kernels import Residency

Make = Callable[..., Residency]

GOOD = int32([11, 12, 13, -1])
NO_PAGES = np.full((3, 16), -1, np.int32)
FAR_PAGES = np.full((3, 16), 2**31 - 1, np.int32)

# name, (requests, topk, resident pages), error, part of its sentence
BAD_STEPS: list[tuple[str, tuple[Any, ...], type[InputError], str]] = [
    (
        "topk dtype",
        (int32(0), GOOD.astype(np.int64), None),
        ArrayError,
        r"topk must be int32\[1, 4\], got int64\[1, 4\]",
    ),
    ("topk width", (int32(0), GOOD[:, :3], None), ArrayError, r"topk must be int32\[1, 4\], got int32\[1, 3\]"),
    ("topk rows", (int32(0, 1), GOOD, None), ArrayError, r"topk must be int32\[2, 4\], got int32\[1, 4\]"),
    ("topk rank", (int32(0), GOOD[0], None), ArrayError, r"topk must be int32\[1, 4\], got int32\[4\]"),
    ("topk list", (int32(0), GOOD.tolist(), None), ArrayError, r"topk must be int32\[1, 4\], got list"),
    ("requests dtype", (np.array([0]), GOOD, None), ArrayError, r"requests must be int32\[B\], got int64\[1\]"),
    ("requests rank", (int32([0]), GOOD, None), ArrayError, r"requests must be int32\[B\], got int32\[1, 1\]"),
    ("requests list", ([0], GOOD, None), ArrayError, r"requests must be int32\[B\], got list"),
    (
        "request above",
        (int32(3), GOOD, None),
        PositionError,
        r"requests\[0\] is 3, expected 0 to 2; raise max_requests",
    ),
    ("request below", (int32(-2), GOOD, None), PositionError, r"requests\[0\] is -2, expected 0 to 2"),
    (
        "request again",
        (int32(0, 1, 0), int32([1, -1, -1, -1], [2, -1, -1, -1], [3, -1, -1, -1]), None),
        PositionError,
        r"requests\[2\] repeats request 0 .* must be neighbours",
    ),
    (
        "pages shape",
        (int32(0), GOOD, NO_PAGES[:, :15]),
        ArrayError,
        r"resident_pages must be int32\[3, 16\], got int32\[3, 15\]",
    ),
    (
        "pages dtype",
        (int32(0), GOOD, NO_PAGES * 1.0),
        ArrayError,
        r"resident_pages must be int32\[3, 16\], got float64",
    ),
    (
        "page above",
        (int32(0), GOOD, FAR_PAGES),
        PositionError,
        r"resident_pages\[0\] .* row 8589934\d+, expected at most 2147483646",
    ),
    (
        "position above",
        (int32(1), int32([1, 30, 64, -1]), None),
        PositionError,
        r"topk\[0, 2\] is position 64 of request 1, .*0 to 63; raise max_positions",
    ),
    ("position below", (int32(1), int32([1, 30, -2, -1]), None), PositionError, r"topk\[0, 2\] is position -2"),
    (
        "twice missing",
        (int32(1), int32([9, 30, 9, -1]), None),
        PositionError,
        r"topk\[0\] selects position 9 of request 1 twice",
    ),
    (
        "twice held",
        (int32(0), int32([1, 30, 1, -1]), None),
        PositionError,
        r"topk\[0\] selects position 1 of request 0 twice",
    ),
    (
        "twice loaded by an earlier row",
        (int32(0, 0), int32([9, 1, -1, -1], [9, 9, -1, -1]), None),
        PositionError,
        r"topk\[1\] selects position 9 of request 0 twice",
    ),
    (
        "twice held and used by an earlier row",
        (int32(0, 0), int32([1, -1, -1, -1], [30, 1, 1, -1]), None),
        PositionError,
        r"topk\[1\] selects position 1 of request 0 twice",
    ),
    (
        "twice resident",
        (int32(0), int32([1, 2, 1, -1]), NO_PAGES + 1),
        PositionError,
        r"topk\[0\] selects position 1 .* twice",
    ),
    (
        "union of misses",
        (int32(1, 1, 1), int32([1, 2, 3, 4], [5, 6, 7, 8], [8, 9, -1, -1]), None),
        HotBufferError,
        r"request 1 selects 9 different rows in one step, hot_slots is 8; raise hot_slots to at least 9",
    ),
    (
        "union with hits",
        (int32(0, 0, 0), int32([21, 22, 23, 24], [25, 26, 27, 28], [1, 28, -1, -1]), None),
        HotBufferError,
        r"request 0 selects 9 different rows",
    ),
]


@pytest.mark.parametrize(("step", "error", "match"), [b[1:] for b in BAD_STEPS], ids=[b[0] for b in BAD_STEPS])
def test_a_bad_step_changes_nothing(make: Make, step: tuple[Any, ...], error: type[InputError], match: str) -> None:
    """Each fault raises its own error with value, limit and knob, and leaves the state bit for bit."""
    residency, twin = make(), make()
    for state in (residency, twin):
        state.resolve(int32(0, 0, 2), int32([1, 2, 3, 4], [5, 2, -1, -1], [7, 8, 9, 10]))
    before = snapshot(residency)
    with pytest.raises(error, match=match):
        residency.resolve(*step)
    assert snapshot(residency) == before
    residency.check()
    after = (int32(2, 0), int32([7, 30, 9, 31], [40, 41, 5, 1]))
    assert_same_resolution(residency.resolve(*after), twin.resolve(*after))
    assert snapshot(residency) == snapshot(twin)


def test_a_fault_takes_back_the_requests_before_it(make: Make) -> None:
    """A fault in the last request of a batch undoes hits and misses of all earlier ones."""
    residency = make()
    residency.resolve(int32(0, 1), int32([1, 2, 3, 4], [5, 6, 7, 8]))
    before = snapshot(residency)
    with pytest.raises(PositionError):
        residency.resolve(int32(0, -1, 1, 2), int32([4, 30, 2, 31], [0, 0, 0, 0], [40, 7, -1, 5], [3, 3, -1, -1]))
    assert snapshot(residency) == before
    residency.check()


def test_a_fault_after_many_steps_changes_nothing(make: Make) -> None:
    """A refused step is undone at every fill of the recency log, also right after it was compacted."""
    residency = make(hot_slots=6)
    rng = np.random.default_rng(7)
    for _ in range(60):
        residency.resolve(int32(0), rng.permutation(12)[None, :4].astype(np.int32))
        before = snapshot(residency)
        held = residency.positions(0)[:3]
        with pytest.raises(PositionError):
            residency.resolve(int32(0), int32([*np.unique(held[held >= 0])[:2], 50, 50]))
        assert snapshot(residency) == before
        residency.check()


BAD_INVALIDATIONS: list[tuple[str, tuple[Any, ...], type[InputError], str]] = [
    ("request", (3, [1]), PositionError, "request is 3, expected 0 to 2"),
    ("position above", (0, [1, 64]), PositionError, r"positions\[1\] is 64, expected 0 to 63"),
    ("position below", (0, [1, -1]), PositionError, r"positions\[1\] is -1"),
    ("dtype", (0, [1.0]), ArrayError, r"positions must be integers \[M\], got float64\[1\]"),
    ("rank", (0, [[1]]), ArrayError, r"positions must be integers \[M\], got int64\[1, 1\]"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "match"), [b[1:] for b in BAD_INVALIDATIONS], ids=[b[0] for b in BAD_INVALIDATIONS]
)
def test_a_bad_invalidation_changes_nothing(
    make: Make, arguments: tuple[Any, ...], error: type[InputError], match: str
) -> None:
    """A position that cannot be is refused before another one is forgotten."""
    residency = make()
    residency.resolve(int32(0), int32([1, 2, 3, 4]))
    before = snapshot(residency)
    with pytest.raises(error, match=match):
        residency.invalidate(*arguments)
    assert snapshot(residency) == before


@pytest.mark.parametrize("method", ["reset", "recency", "positions"])
def test_an_unknown_request_is_refused(make: Make, method: str) -> None:
    """Every question about a request checks its number."""
    for request in (-1, 3):
        with pytest.raises(PositionError, match=f"request is {request}, expected 0 to 2"):
            getattr(make(), method)(request)


BAD_SETTINGS = [
    ({"hot_slots": 127}, "hot_slots is 127, expected at least 128"),
    ({"hot_slots": 32_769}, "hot_slots is 32769, expected at most 32768: .*int16"),
    ({"max_requests": 0}, "max_requests is 0, expected at least 1"),
    ({"top_k": 0}, "top_k is 0, expected at least 1"),
    ({"page_rows": -1}, "page_rows is -1, expected at least 1"),
    ({"max_positions": 0}, "max_positions is 0, expected at least 1"),
    ({"max_positions": 2**31}, "max_positions is 2147483648, expected at most 2147483647: positions are int32"),
    ({"hot_slots": 256.0}, "hot_slots must be an int, got 256.0"),
    ({"page_rows": True}, "page_rows must be an int, got True"),
    ({"order": "lru"}, "order must be one of stack, vllm, got 'lru'"),
    ({"backend": "cuda"}, "backend must be one of reference, numba, got 'cuda'"),
]


@pytest.mark.parametrize(("setting", "match"), BAD_SETTINGS)
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], match: str) -> None:
    """Construction names the setting, its value and its limit."""
    good = {"max_requests": 1, "hot_slots": 256, "max_positions": 4096, "top_k": 128}
    with pytest.raises(SettingError, match=match):
        Residency(**{**good, **setting})


@pytest.mark.parametrize("hot_slots", [128, 32_768])
def test_the_limits_themselves_work(hot_slots: int, backend: str) -> None:
    """The smallest and the largest hot buffer are accepted and resolve."""
    residency = Residency(max_requests=1, hot_slots=hot_slots, max_positions=4096, top_k=128, backend=backend)
    step = residency.resolve(int32(0), np.arange(128, dtype=np.int32)[None])
    assert step.counts.tolist() == [[0, 128, 0, 0]]
    residency.check()
