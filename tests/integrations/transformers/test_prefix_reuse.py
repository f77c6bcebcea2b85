"""A second question about a document starts from the first one's pages, and is answered as if it had not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from asking import ANSWER, PAGE_ROWS, answer, ask, document, forward_tokens, stock_answer

from hisparse.integrations.transformers import HiSparseCache

RESTORABLE = [case for case in zoo.CASES if case.model_type not in ("deepseek_v4", "dots3_note_text")]
ROOM = {"max_positions": 320, "page_rows": PAGE_ROWS}


@pytest.fixture(params=RESTORABLE, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> zoo.ModelCase:
    """Every architecture whose layers all keep one row a token."""
    return request.param


@pytest.fixture(params=["ram", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A pool in memory, and one in a file."""
    return "ram" if request.param == "ram" else f"disk:{tmp_path}"


@pytest.mark.parametrize("batch", [1, 3])
def test_second_question_of_a_reset_cache(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, *, place: str, batch: int
) -> None:
    """After a reset the document is restored: tokens equal stock's, only the rest is computed, counts are exact."""
    model, text = shelf.served(case), document(case, batch)
    first, second = ask(case, text, seed=5), ask(case, text, seed=6, length=30)
    cache = make_cache(model.config, host_pool=place, **ROOM)
    answer(model, first, cache)
    cache.reset()
    restored = cache.adopt_prefix(second)
    assert (restored, cache.get_seq_length()) == (192, 192)
    with forward_tokens(model) as passes:
        tokens = answer(model, second, cache)
    assert torch.equal(tokens, stock_answer(shelf.stock(case), first, restored, second))
    assert passes == [batch * (second.shape[1] - restored)] + [batch] * (ANSWER - 1)
    stats = cache.stats()
    assert (stats["prefix_hit_tokens"], stats["prefix_queried_tokens"]) == (batch * 192, batch * 224)


def test_a_second_cache_adopts_what_a_running_one_published(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Two caches on one pool take turns, one begins with the other's pages, and both go on as stock does."""
    model, text = shelf.served(case), document(case)
    first, second = ask(case, text, seed=5), ask(case, text, seed=6)
    one = make_cache(model.config, host_pool_bytes=1 << 22, **ROOM)
    head = answer(model, first, one, max_new_tokens=ANSWER // 2)
    assert one.publish() == (head.shape[1] - 1) // PAGE_ROWS
    assert one.publish() == 0
    other = make_cache(model.config, host_pool=one.host_pool, max_positions=320)
    restored = other.adopt_prefix(second)
    assert restored == 192
    shared = one.host_pool.pool.used_pages
    mine = answer(model, second, other)
    assert one.host_pool.pool.used_pages > shared
    theirs = answer(model, head, one)
    assert torch.equal(mine, stock_answer(shelf.stock(case), first, restored, second))
    whole = answer(shelf.stock(case), first, None, max_new_tokens=ANSWER // 2 + ANSWER)
    assert torch.equal(theirs, whole)


def test_cropping_into_shared_pages_copies_them(shelf: Any, make_cache: Any, case: zoo.ModelCase, place: str) -> None:
    """A request cut into published pages goes on with other tokens; whoever shares them sees no difference."""
    model, stock, text = shelf.served(case), shelf.stock(case), document(case)
    first, second = ask(case, text, seed=5), ask(case, text, seed=6)
    one = make_cache(model.config, host_pool=place, host_pool_bytes=1 << 22, **ROOM)
    answer(model, first, one, max_new_tokens=1)
    one.publish()
    other = make_cache(model.config, host_pool=one.host_pool, max_positions=320)
    assert other.adopt_prefix(second) == 192
    one.crop(100 - one.get_seq_length())
    changed = ask(case, text[:, :100], seed=7, length=60)
    assert torch.equal(answer(model, changed, one), stock_answer(stock, first, 100, changed))
    assert torch.equal(answer(model, second, other), stock_answer(stock, first, 192, second))
    one.reset()
    other.reset()
    assert one.adopt_prefix(second) == 208
    other.adopt_prefix(changed)
    assert other.get_seq_length() == 144


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}], ids=["beams", "samples"]
)
def test_after_beams_and_samples(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, *, place: str, options: dict[str, Any]
) -> None:
    """Requests that were repeated and reordered leave pages that a later question can use, tokens like stock's."""
    model, text = shelf.served(case), document(case)
    first, second = ask(case, text, seed=5), ask(case, text, seed=6)
    cache = make_cache(model.config, host_pool=place, host_pool_bytes=1 << 22, **ROOM)
    torch.manual_seed(3)
    left = answer(model, first, cache, max_new_tokens=40, **options)
    cache.reset()
    restored = cache.adopt_prefix(second)
    assert restored == 192
    assert torch.equal(answer(model, second, cache), stock_answer(shelf.stock(case), first, restored, second))
    cache.reset()
    # All but the last of the tokens that were kept are in the pool too.
    assert cache.adopt_prefix(left[:1]) == (left.shape[1] - 1) // PAGE_ROWS * PAGE_ROWS


@pytest.fixture
def small(v32: zoo.ModelCase) -> zoo.ModelCase:
    """One architecture, where one is enough."""
    return v32


def test_a_batch_begins_with_what_all_find(shelf: Any, make_cache: Any, small: zoo.ModelCase) -> None:
    """Of two prompts the shorter hit decides; the whole question counts as asked, what was restored as found."""
    model, text = shelf.served(small), document(small)
    cache = make_cache(model.config, host_pool_bytes=1 << 22, **ROOM)
    first = ask(small, text, seed=5)
    answer(model, first, cache)
    cache.reset()
    prompts = torch.cat([ask(small, text, seed=6), ask(small, text[:, :100], seed=7, length=121)])
    assert cache.adopt_prefix(prompts) == 96
    assert torch.equal(answer(model, prompts, cache), stock_answer(shelf.stock(small), first.repeat(2, 1), 96, prompts))
    stats = cache.stats()
    assert (stats["prefix_hit_tokens"], stats["prefix_queried_tokens"]) == (2 * 96, 2 * 208)


def test_old_prefixes_give_way(shelf: Any, make_cache: Any, small: zoo.ModelCase, place: str) -> None:
    """In a pool with room for two requests, documents come and go; what is running is never touched."""
    model, stock = shelf.served(small), shelf.stock(small)
    running = make_cache(model.config, host_pool=place, **ROOM, host_pool_bytes=2 * 20 * page_bytes(small))
    kept = ask(small, document(small), seed=5)
    head = answer(model, kept, running, max_new_tokens=4)
    running.publish()
    cache = make_cache(model.config, host_pool=running.host_pool, max_positions=320)
    found = []
    for round_ in range(8):
        prompt = ask(small, document(small, seed=10 + round_ % 3), seed=round_)
        found.append(cache.adopt_prefix(prompt))
        if found[-1]:
            cache.reset()
            assert cache.adopt_prefix(kept) == 208
        assert answer(model, prompt if not found[-1] else kept, cache).shape[1] == kept.shape[1] + ANSWER
        cache.reset()
        running.check()
    assert found[0] == 0
    whole = answer(stock, kept, None, max_new_tokens=4 + ANSWER)
    assert torch.equal(answer(model, head, running), whole)


def test_other_salts_identities_and_documents_find_nothing(shelf: Any, make_cache: Any, small: zoo.ModelCase) -> None:
    """The same tokens under another salt or identity, and other tokens, are computed; each then finds its own."""
    model = shelf.served(small)
    first = make_cache(model.config, host_pool_bytes=1 << 22, identity="model@1", **ROOM)
    prompt = ask(small, document(small), seed=5)
    answer(model, prompt, first)
    first.publish()
    for settings in ({"salt": "tenant"}, {"identity": "model@2"}, {"salt": ""}):
        other = make_cache(model.config, host_pool=first.host_pool, max_positions=320, **settings)
        assert other.adopt_prefix(prompt) == 0
        answer(model, prompt, other)
        other.reset()
        assert other.adopt_prefix(prompt) == 208
        assert (other.stats()["prefix_hit_tokens"], other.stats()["prefix_queried_tokens"]) == (208, 416)
        other.reset()
    same = make_cache(model.config, host_pool=first.host_pool, max_positions=320)
    assert same.adopt_prefix(ask(small, document(small, seed=9), seed=5)) == 0
    assert same.adopt_prefix(prompt) == 208


def test_a_persistent_pool_serves_the_next_process(shelf: Any, small: zoo.ModelCase, tmp_path: Path) -> None:
    """Pages published before a close are found by a cache made anew, rows and index keys, tokens like stock's."""
    model, text = shelf.served(small), document(small)
    first, second = ask(small, text, seed=5), ask(small, text, seed=6)
    settings = {"host_pool": f"disk:{tmp_path}?persist", "host_pool_bytes": 1 << 22, "identity": "zoo@1", **ROOM}
    cache = HiSparseCache(model.config, **settings)
    answer(model, first, cache)
    cache.close()
    again = HiSparseCache(model.config, **settings)
    restored = again.adopt_prefix(second)
    assert restored == 192
    assert torch.equal(answer(model, second, again), stock_answer(shelf.stock(small), first, restored, second))
    again.check()
    again.close()
    stranger = HiSparseCache(model.config, **{**settings, "salt": "other"})
    assert stranger.adopt_prefix(second) == 0
    stranger.close()


def test_beams_in_recycled_pages_of_a_persistent_pool(shelf: Any, small: zoo.ModelCase, tmp_path: Path) -> None:
    """Pages of an earlier process that give way to beams are shared and copied with everything in them."""
    model = shelf.served(small)
    size = 4 * 20 * page_bytes(small)
    settings = {"host_pool": f"disk:{tmp_path}?persist", "host_pool_bytes": size, "identity": "zoo@1", **ROOM}
    for seed in range(1, 6):
        cache = HiSparseCache(model.config, **settings)
        answer(model, ask(small, document(small, seed=seed), seed=seed), cache)
        cache.close()
    cache = HiSparseCache(model.config, **settings)
    prompt = ask(small, document(small, seed=20), seed=5)
    tokens = answer(model, prompt, cache, num_beams=3, max_new_tokens=40)
    assert torch.equal(tokens, answer(shelf.stock(small), prompt, None, num_beams=3, max_new_tokens=40))
    cache.check()
    cache.close()


def page_bytes(case: zoo.ModelCase) -> int:
    """Bytes of one page of float32 rows and index keys."""
    layers, leaders = case.settings["num_hidden_layers"], len(case.groups)
    return PAGE_ROWS * 4 * (layers * case.row_elements + leaders * int(case.settings["index_head_dim"]))


def test_a_pool_has_exactly_the_bytes_of_rows_and_index_keys(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Index keys count: a pool has as many pages as rows and index keys of all layers leave room for."""
    cache = make_cache(shelf.served(case).config, host_pool_bytes=20 * page_bytes(case) + 5, **ROOM)
    answer(shelf.served(case), document(case), cache, max_new_tokens=1)
    pool = cache.host_pool.pool
    assert (pool.pages, pool.capacity_bytes) == (20, 20 * page_bytes(case))
