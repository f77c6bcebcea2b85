"""The stock cache's greedy tokens for every model, hot size and storage, with every row accounted for."""

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from accounting import OUTCOMES, assert_accounts

from hisparse.host import HostPool
from hisparse.integrations.transformers import ResidentCache

SHORT = 60
STEPS = zoo.NEW_TOKENS - 1  # the first new token comes out of the prompt's own forward


@pytest.fixture(params=("ram", "disk"))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Host pool in memory, or in a file of a temporary directory."""
    return "ram" if request.param == "ram" else f"disk:{tmp_path}"


@pytest.mark.parametrize("hot_ratio", [1, 1.5, 2, 4])
def test_tokens_equal_the_stock_cache(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, *, batch: int, storage: str, hot_ratio: float
) -> None:
    """Greedy tokens equal the stock cache's and every selected row is a hit, a miss, resident or padding."""
    model = shelf.served(case)
    cache = make_cache(model, hot_slots=int(hot_ratio * zoo.TOP_K), host_pool=storage)
    sequences = zoo.generate(model, zoo.prompt(case, batch), cache=cache)
    assert torch.equal(sequences, shelf.reference(case, batch))
    assert_accounts(cache, case, batch=batch, steps=STEPS)


def test_a_larger_hot_buffer_never_misses_more(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Misses never rise as the hot buffer grows, and with a slot for every row only first uses are misses."""
    model = shelf.served(case)
    misses = []
    for slots in (zoo.TOP_K, 2 * zoo.TOP_K, 8 * zoo.TOP_K, 4096):
        cache = make_cache(model, hot_slots=slots, max_positions=512)
        zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=SHORT)
        misses.append(cache.stats()["selections"]["miss"])
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] <= len(case.groups) * (case.context + SHORT)
    assert misses[0] > misses[-1]


@pytest.mark.parametrize("attention", ["absorbed", "expand"])
def test_both_attention_modes_are_lossless(
    shelf: Any, make_cache: Any, mla_case: zoo.ModelCase, attention: str
) -> None:
    """Attention in latent space and attention over expanded rows both give the stock tokens."""
    model = shelf.served(mla_case, attention)
    cache = make_cache(model)
    sequences = zoo.generate(model, zoo.prompt(mla_case, 3), cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(mla_case, 3, max_new_tokens=SHORT))
    assert_accounts(cache, mla_case, batch=3, steps=SHORT - 1)


def test_resident_baseline_is_lossless(shelf: Any, case: zoo.ModelCase) -> None:
    """The baseline that keeps every row on the device gives the stock tokens too."""
    model = shelf.served(case)
    cache = ResidentCache(model.config)
    sequences = zoo.generate(model, zoo.prompt(case, 3), cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 3, max_new_tokens=SHORT))


@pytest.mark.parametrize(("order", "backend"), [("stack", "reference"), ("vllm", "reference"), ("vllm", "numba")])
def test_order_and_backend_do_not_change_tokens(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, order: str, backend: str
) -> None:
    """Recency order and kernel backend decide what is copied, never what is read."""
    model = shelf.served(v32)
    cache = make_cache(model, order=order, backend=backend, page_rows=16)
    sequences = zoo.generate(model, zoo.prompt(v32, 3), cache=cache, max_new_tokens=40)
    assert torch.equal(sequences, shelf.reference(v32, 3, max_new_tokens=40))
    assert_accounts(cache, v32, batch=3, steps=39)


@pytest.mark.parametrize("length", [1, 5, zoo.TOP_K - 1, zoo.TOP_K, zoo.TOP_K + 1])
def test_context_shorter_than_the_selection(shelf: Any, make_cache: Any, case: zoo.ModelCase, length: int) -> None:
    """A prompt around or below `top_k` rows is decoded with the missing selections counted as padding."""
    given = zoo.prompt(case, 1, length=length)
    model = shelf.served(case)
    cache = make_cache(model)
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=40)
    assert torch.equal(sequences, zoo.generate(shelf.stock(case), given, max_new_tokens=40))
    # The first step of a one-token prompt completes the first compressed entry: there was none to select from.
    is_before_first_entry = case.name == "deepseek_v4" and length == 1
    assert_accounts(cache, case, batch=1, steps=39 - is_before_first_entry)
    first_rows = length // 2 if case.name == "deepseek_v4" else length + 1
    assert (cache.stats()["selections"]["padding"] > 0) == (first_rows < zoo.TOP_K)


def test_padding_longer_than_the_context(shelf: Any, make_cache: Any, mla_case: zoo.ModelCase) -> None:
    """A batch whose shortest row has fewer tokens than `top_k` decodes as the stock cache does."""
    given = zoo.prompt(mla_case, 3, length=zoo.PADS[-1] + 4)
    model = shelf.served(mla_case)
    cache = make_cache(model)
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=40)
    assert torch.equal(sequences, zoo.generate(shelf.stock(mla_case), given, max_new_tokens=40))
    assert_accounts(cache, mla_case, batch=3, steps=39)


def test_a_closed_cache_leaves_nothing(shelf: Any, v32: zoo.ModelCase, make_cache: Any, tmp_path: Path) -> None:
    """Closing gives back every page, the pool's file goes with it, and the counts can still be read."""
    model = shelf.served(v32)
    cache = make_cache(model, host_pool=f"disk:{tmp_path}")
    zoo.generate(model, zoo.prompt(v32, 3), cache=cache, max_new_tokens=10)
    assert any(tmp_path.iterdir())
    counted = cache.stats()
    cache.close()
    assert not any(tmp_path.iterdir())
    after = cache.stats()
    assert (after["selections"], after["layers"]) == (counted["selections"], counted["layers"])
    assert after["device_kv_bytes"] == 0


def test_bytes_are_counted_where_they_are_copied(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes in the statistics are the sum of what each gather of the pool says that it copied."""
    copied = []
    gather = HostPool.gather

    def counted(*given: Any, **named: Any) -> int:
        copied.append(gather(*given, **named))
        return copied[-1]

    monkeypatch.setattr(HostPool, "gather", counted)
    model = shelf.served(case)
    cache = make_cache(model)
    zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=40)
    assert copied
    assert cache.stats()["host_to_device_bytes"] == sum(copied)


@pytest.mark.parametrize("case", zoo.STOCK_FIRST, ids=lambda case: case.name)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_first_layer_without_rows(shelf: Any, make_cache: Any, case: zoo.ModelCase, num_beams: int) -> None:
    """Where the first layer keeps its stock cache, the tokens are the stock ones too, with and without beams."""
    model = shelf.served(case)
    cache = make_cache(model)
    options = {"max_new_tokens": 30, "num_beams": num_beams}
    sequences = zoo.generate(model, zoo.prompt(case, 3), cache=cache, **options)
    assert torch.equal(sequences, shelf.reference(case, 3, **options))
    assert_accounts(cache, case, batch=3 * num_beams, steps=29)


def leaves(value: Any) -> list[Any]:
    """Return what is at the ends of nested dicts and lists."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_statistics_are_plain_numbers(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Statistics hold ints and floats only, so that they go into JSON as they are."""
    model = shelf.served(case)
    cache = make_cache(model)
    zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=4)
    stats = cache.stats()
    assert {type(value) for value in leaves(stats)} <= {int, float}
    assert stats["device_kv_bytes"] > 0
    assert stats["spilled_pages"] == 0
    assert stats["prefix_hit_tokens"] == 0


def test_requests_add_up(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """The outcomes of a batch's requests add up to the cache's, and each request's to its own selections."""
    model = shelf.served(v32)
    cache = make_cache(model)
    zoo.generate(model, zoo.prompt(v32, 3), cache=cache, max_new_tokens=SHORT)
    stats = cache.stats()
    assert len(stats["requests"]) == 3
    for outcome in OUTCOMES:
        assert sum(request[outcome] for request in stats["requests"]) == stats["selections"][outcome]
    for request in stats["requests"]:
        assert sum(request.values()) == len(v32.groups) * zoo.TOP_K * (SHORT - 1)
