"""A slot opens its store once, empties it, and stays closed once closed."""

import pytest
import torch
from tiering import CPU, GEOMETRY, append_step

from hisparse.errors import HostPoolFullError, StateError
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.slot import StoreSlot


class CountedRows(ResidentRows):
    """A store that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        CountedRows.closed += 1


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> StoreSlot:
    """A slot of counted stores."""
    monkeypatch.setattr(CountedRows, "closed", 0)
    return StoreSlot(lambda batch, dtype, device: CountedRows(GEOMETRY, batch=batch, dtype=dtype, device=device))


def test_the_first_pass_opens_the_store(slot: StoreSlot) -> None:
    """An empty slot holds nothing; the first batch opens a store of its size, and later ones find it."""
    assert (slot.store, slot.length(0)) == (None, 0)
    store = slot.ensure(2, torch.float32, CPU)
    assert store.batch == 2
    assert slot.ensure(5, torch.float16, CPU) is store
    append_step(store, 2, 3)
    assert slot.length(0) == 3


def test_an_emptied_slot_can_be_filled_again(slot: StoreSlot) -> None:
    """Emptying closes the store once, and the next batch may be another."""
    slot.ensure(2, torch.float32, CPU)
    slot.empty()
    slot.empty()
    assert (CountedRows.closed, slot.store, slot.length(0)) == (1, None, 0)
    assert slot.ensure(3, torch.float32, CPU).batch == 3


def test_a_closed_slot_stays_closed(slot: StoreSlot) -> None:
    """After closing, twice is harmless, no store is opened any more."""
    slot.ensure(2, torch.float32, CPU)
    slot.close()
    slot.close()
    assert CountedRows.closed == 1
    with pytest.raises(StateError, match="closed; make a new one"):
        slot.ensure(2, torch.float32, CPU)


def test_a_store_that_can_not_be_opened_leaves_the_slot_empty() -> None:
    """A refusal is passed on, and a later batch can still be served."""
    refused = []

    def open_store(batch: int, dtype: torch.dtype, device: torch.device) -> ResidentRows:
        if batch > 2:
            refused.append(batch)
            raise HostPoolFullError("too many")
        return ResidentRows(GEOMETRY, batch=batch, dtype=dtype, device=device)

    slot = StoreSlot(open_store)
    with pytest.raises(HostPoolFullError, match="too many"):
        slot.ensure(3, torch.float32, CPU)
    assert (refused, slot.store) == ([3], None)
    assert slot.ensure(2, torch.float32, CPU).batch == 2
