"""What can't be shared, adopted or published is refused with a reason, or left out."""

from typing import Any

import pytest
import torch
import zoo
from asking import ANSWER, PAGE_ROWS, answer, ask, document
from transformers import DynamicCache

from hisparse.errors import (
    ArrayError,
    HostPoolFullError,
    PositionError,
    SettingError,
    StateError,
    StorageError,
    UnsupportedModelError,
)
from hisparse.host import HostPool

ROOM = {"max_positions": 320, "page_rows": PAGE_ROWS}
LARGE = {**ROOM, "host_pool_bytes": 1 << 22}


@pytest.mark.parametrize(("name", "kept"), [("dots3_note", "sliding windows"), ("deepseek_v4", "compression buffers")])
def test_models_that_keep_more_say_so(shelf: Any, make_cache: Any, name: str, kept: str) -> None:
    """A model with state that no page has refuses to adopt, and publishes nothing."""
    case = zoo.BY_NAME[name]
    model = shelf.served(case)
    cache = make_cache(model.config, **LARGE)
    with pytest.raises(UnsupportedModelError, match=f"also keeps {kept}"):
        cache.adopt_prefix(document(case))
    answer(model, document(case), cache, max_new_tokens=4)
    assert cache.publish() == 0
    cache.reset()
    assert cache.host_pool.pool is None


@pytest.mark.parametrize("ids", [torch.ones(20), torch.ones(1, 20), torch.ones(0, 20).long(), torch.ones(20).long()])
def test_prompts_are_a_matrix_of_tokens(make_cache: Any, v32: zoo.ModelCase, ids: torch.Tensor) -> None:
    """Other shapes and dtypes are refused with what came."""
    cache = make_cache(zoo.build(v32).config, **ROOM)
    with pytest.raises(ArrayError, match=r"input_ids must be int64\[B, T\], got torch"):
        cache.adopt_prefix(ids)


def test_only_an_empty_open_cache_adopts(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A cache that holds tokens, one that adopted already and one that was closed refuse."""
    model, prompt = shelf.served(v32), document(v32)
    cache = make_cache(model.config, **LARGE)
    answer(model, prompt, cache, max_new_tokens=1)
    with pytest.raises(StateError, match="this one holds requests of 200 tokens"):
        cache.adopt_prefix(prompt)
    cache.reset()
    assert cache.adopt_prefix(prompt) == 192
    with pytest.raises(StateError, match="holds requests of 192 tokens"):
        cache.adopt_prefix(prompt)
    pool = cache.host_pool
    cache.close()
    with pytest.raises(StateError, match="closed"):
        cache.adopt_prefix(prompt)
    with pytest.raises(StateError, match="keep one open"):
        make_cache(model.config, host_pool=pool)


def test_settings_of_a_shared_pool_are_its_own(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Size and page size can't be set again; other rows are refused when they come."""
    cache = make_cache(shelf.served(v32).config, **LARGE)
    answer(shelf.served(v32), document(v32), cache, max_new_tokens=1)
    with pytest.raises(SettingError, match="host_pool_bytes is set where a pool is made"):
        make_cache(v32_config(), host_pool=cache.host_pool, host_pool_bytes=5)
    with pytest.raises(SettingError, match="page_rows is 32, the shared host pool has 16"):
        make_cache(v32_config(), host_pool=cache.host_pool, page_rows=32)
    other = zoo.BY_NAME["hy_v4"]
    wrong = make_cache(shelf.served(other).config, host_pool=cache.host_pool, max_positions=320)
    with pytest.raises(SettingError, match="give this cache a pool of its own"):
        answer(shelf.served(other), document(other), wrong)
    cache.reset()
    assert cache.adopt_prefix(document(v32)) == 192


def v32_config() -> Any:
    """Return the config of the reference architecture."""
    return zoo.build(zoo.BY_NAME["deepseek_v32"]).config


def test_a_full_pool_refuses_and_counts_nothing(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Pages needed, free and the knob are named, the cache stays empty, and asking until there is room counts once."""
    model, prompt = shelf.served(v32), document(v32)
    one = make_cache(model.config, **ROOM)
    answer(model, prompt, one, max_new_tokens=1)
    one.publish()
    other = make_cache(model.config, host_pool=one.host_pool, max_positions=320)
    for _ in range(2):
        with pytest.raises(HostPoolFullError, match=r"20 pages needed, 0 free of 20.*host_pool_bytes"):
            other.adopt_prefix(prompt)
    assert (other.get_seq_length(), other.stats()["prefix_queried_tokens"]) == (0, 0)
    one.reset()
    assert other.adopt_prefix(prompt) == 192
    assert (other.stats()["prefix_hit_tokens"], other.stats()["prefix_queried_tokens"]) == (192, 192)


def test_questions_that_find_nothing_count_once(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A miss is counted when its request starts, however often it was asked; one that never starts is not."""
    model, prompt = shelf.served(v32), document(v32)
    cache = make_cache(model.config, **LARGE)
    assert [cache.adopt_prefix(prompt) for _ in range(3)] == [0, 0, 0]
    assert cache.stats()["prefix_queried_tokens"] == 0
    answer(model, prompt, cache, max_new_tokens=1)
    assert cache.stats()["prefix_queried_tokens"] == 192
    cache.reset()
    assert cache.adopt_prefix(ask(v32, document(v32, seed=4), seed=1)) == 0
    cache.reset()
    answer(model, prompt, cache, max_new_tokens=1)
    assert cache.stats()["prefix_queried_tokens"] == 192


def test_prompts_beyond_the_limit_are_refused(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A prompt that could not be run is not adopted either."""
    model = shelf.served(v32)
    cache = make_cache(model.config, **LARGE)
    answer(model, document(v32), cache, max_new_tokens=1)
    cache.reset()
    with pytest.raises(PositionError, match="max_positions"):
        cache.adopt_prefix(ask(v32, document(v32), seed=1, length=200))
    assert cache.adopt_prefix(document(v32)) == 192


def test_padded_masked_and_moved_requests_are_not_published(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Only requests whose rows follow from their tokens leave pages: of a padded batch the full row."""
    model, given = shelf.served(v32), zoo.prompt(v32, 3)
    cache = make_cache(model.config, **LARGE)
    zoo.generate(model, given, cache=cache, max_new_tokens=2)
    assert cache.publish() == 15
    cache.reset()
    assert [cache.adopt_prefix(given.ids[request, None]) for request in (2, 1)] == [0, 0]
    assert cache.adopt_prefix(given.ids[:1]) == 224
    cache.reset()

    prompt = document(v32, seed=8)
    embedded = model.get_input_embeddings()(prompt).detach()
    moved = torch.arange(3, 203)[None]
    for passed in ({"inputs_embeds": embedded}, {"input_ids": prompt, "position_ids": moved}):
        with torch.no_grad():
            model(**passed, use_cache=True, **zoo.cache_argument(model, cache))
        assert cache.get_seq_length() == 200
        cache.reset()
        assert cache.adopt_prefix(prompt) == 0


def test_rows_taken_over_are_not_published(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Rows that came without their tokens, and all after them, have no names."""
    model, stock, prompt = shelf.served(v32), DynamicCache(config=zoo.build(v32).config), document(v32)
    with torch.no_grad():
        shelf.stock(v32)(input_ids=prompt, use_cache=True, **zoo.cache_argument(model, stock))
    cache = make_cache(model.config, **LARGE)
    cache.take_over(stock)
    answer(model, ask(v32, prompt, seed=1), cache)
    assert cache.publish() == 0


def test_requests_end_although_their_pages_can_not_be_kept(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails while pages are published fails `publish`, not the end of the requests."""
    model, prompt = shelf.served(v32), document(v32)
    cache = make_cache(model.config, **LARGE)
    answer(model, prompt, cache, max_new_tokens=1)

    def fail(*_given: Any) -> None:
        raise StorageError("the disk went away")

    monkeypatch.setattr(HostPool, "write", fail)
    with pytest.raises(StorageError, match="the disk went away"):
        cache.publish()
    cache.reset()
    monkeypatch.undo()
    assert (cache.get_seq_length(), cache.adopt_prefix(prompt)) == (0, 0)


def test_an_interrupted_prompt_leaves_only_what_was_complete(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of a pass that failed are not found; those of the passes before it are."""
    model, prompt = shelf.served(v32), ask(v32, document(v32), seed=1, length=60)
    cache = make_cache(model.config, **LARGE)
    real, calls = HostPool.write, []

    def fail_later(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise StorageError("the disk went away")
        real(*given)

    monkeypatch.setattr(HostPool, "write", fail_later)
    with pytest.raises(StorageError):
        answer(model, prompt, cache, prefill_chunk_size=128)
    monkeypatch.undo()
    cache.reset()
    assert cache.adopt_prefix(prompt) == 128
    assert answer(model, prompt, cache).shape == (1, 260 + ANSWER)
