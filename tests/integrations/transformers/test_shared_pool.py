"""A shared pool is opened for the first batch, refuses what does not fit it, and ends with its last owner."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiering import plan_for

from hisparse.config import CacheSettings
from hisparse.errors import SettingError, StateError
from hisparse.integrations.transformers.shared_pool import SharedPool


def shared_for(identity: str | None = None, **settings: Any) -> SharedPool:
    """Return a shared pool of pages of 4 rows."""
    return SharedPool(CacheSettings(page_rows=4, **settings), identity)


def publish_page(shared: SharedPool) -> None:
    """Leave one page in the open pool."""
    assert shared.pool is not None
    request = shared.pool.admit(4)
    request.extend(4)
    request.publish([bytes(32)])
    request.close()


def test_one_pool_for_all_owners(tmp_path: Path) -> None:
    """Whoever opens it gets the same pool; the file goes when the last owner leaves, and nobody joins afterwards."""
    place = f"disk:{tmp_path}"
    shared = shared_for(host_pool=place)
    one, two = shared.join(), shared.join()
    assert (shared.pool, shared.dtype) == (None, None)
    pool = shared.open_for(plan_for(1, host_pool=place))
    assert shared.open_for(plan_for(1, host_pool=place)) is shared.pool is pool
    assert shared.dtype == torch.float32
    shared.leave(one)
    shared.leave(one)
    assert shared.outlives(one)
    assert not shared.outlives(two)
    assert len(list(tmp_path.iterdir())) == 1
    shared.leave(two)
    assert (list(tmp_path.iterdir()), shared.pool) == ([], None)
    with pytest.raises(StateError, match="closed with the last cache that had it"):
        shared.join()


def test_nothing_kept_is_nothing_held() -> None:
    """Where no request runs and no page is kept the memory goes back; a kept page or a promise holds it."""
    shared = shared_for()
    shared.join()
    pool = shared.open_for(plan_for(1))
    request = pool.admit(4)
    shared.settle()
    assert shared.pool is pool
    request.close()
    publish_page(shared)
    shared.settle()
    assert shared.pool is pool
    pool.ledger.clear_index()
    shared.settle()
    assert shared.pool is None
    shared.settle()


def test_other_rows_are_refused_while_others_may_need_theirs() -> None:
    """Another dtype names both formats, whether a request runs or another owner waits; alone it starts anew."""
    shared = shared_for()
    shared.join()
    half = plan_for(1, dtype=torch.bfloat16)
    pool = shared.open_for(plan_for(1))
    request = pool.admit(4)
    message = r"has rows of 2 x float32\[6\], 1 x float32\[4\], this model makes rows of 2 x bfloat16\[6\]"
    with pytest.raises(SettingError, match=message):
        shared.open_for(half)
    request.close()
    other = shared.join()
    with pytest.raises(SettingError, match="a pool of its own"):
        shared.open_for(half)
    shared.leave(other)
    assert shared.open_for(half) is not pool
    assert shared.dtype == torch.bfloat16


def test_a_pool_sized_by_its_batch_grows_with_it() -> None:
    """Without a size a larger batch gets a larger pool, unless others have it; with a size it stays."""
    shared = shared_for()
    shared.join()
    assert shared.open_for(plan_for(1)).pages == 16
    assert shared.open_for(plan_for(3)).pages == 48
    assert shared.open_for(plan_for(2)).pages == 48
    shared.join()
    assert shared.open_for(plan_for(4)).pages == 48
    sized = shared_for(host_pool_bytes=1 << 12)
    sized.join()
    pool = sized.open_for(plan_for(1, host_pool_bytes=1 << 12))
    assert sized.open_for(plan_for(3, host_pool_bytes=1 << 12)) is pool


def test_a_pool_that_outlives_the_process_says_whose_it_is(tmp_path: Path) -> None:
    """Identity and size are needed, each refused by name; with both the file stays."""
    place = f"disk:{tmp_path}?persist"
    with pytest.raises(SettingError, match=r"give identity="):
        shared_for(host_pool=place, host_pool_bytes=1 << 12)
    with pytest.raises(SettingError, match=r"give host_pool_bytes="):
        shared_for("model@1", host_pool=place)
    shared = shared_for("model@1", host_pool=place, host_pool_bytes=1 << 14)
    ticket = shared.join()
    assert shared.outlives(ticket)
    shared.open_for(plan_for(1, host_pool=place, host_pool_bytes=1 << 14))
    publish_page(shared)
    shared.settle()
    assert shared.pool is not None
    shared.leave(ticket)
    again = shared_for("model@1", host_pool=place, host_pool_bytes=1 << 14)
    ticket = again.join()
    assert again.open_for(plan_for(1, host_pool=place, host_pool_bytes=1 << 14)).cached_pages == 1
    again.leave(ticket)
