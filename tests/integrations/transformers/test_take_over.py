"""A cache takes over what a stock one holds, all or some of it, or says why not."""

from typing import Any

import pytest
import torch
import transformers
import zoo
from transformers.cache_utils import DynamicCache

from hisparse.errors import HiSparseError, InputError, PositionError, StateError
from hisparse.integrations.transformers import HiSparseCache, ResidentCache

TOKENS = 20
PLAIN = [case for case in zoo.CASES if case.model_type not in {"deepseek_v4", "dots3_note_text"}]


def read(model: Any, given: zoo.Prompt) -> DynamicCache:
    """Read a prompt into a stock cache."""
    cache = DynamicCache(config=model.config)
    places = (given.mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        model(
            **given.inputs,
            position_ids=places,
            use_cache=True,
            logits_to_keep=1,
            **zoo.cache_argument(model, cache),
        )
    return cache


@pytest.fixture(params=PLAIN, ids=lambda case: case.name)
def plain(request: pytest.FixtureRequest) -> zoo.ModelCase:
    """Every architecture all of whose layers keep one row a token."""
    return request.param


@pytest.mark.parametrize("make", [HiSparseCache, ResidentCache])
def test_decoding_goes_on_from_a_stock_cache(shelf: Any, plain: zoo.ModelCase, make: Any) -> None:
    """Whoever read the prompt, the tokens after it are the stock ones, and the stock cache is as it was."""
    given = zoo.prompt(plain, 3)
    stock = read(shelf.stock(plain), given)
    kept = [(layer.keys.clone(), layer.values.clone()) for layer in stock.layers]
    cache = make(shelf.served(plain).config)
    cache.take_over(stock, given.ids.shape[1] - 1)
    assert cache.get_seq_length() == given.ids.shape[1] - 1
    sequences = zoo.generate(shelf.served(plain), given, cache=cache, max_new_tokens=TOKENS)
    assert torch.equal(sequences, zoo.generate(shelf.stock(plain), given, max_new_tokens=TOKENS))
    for layer, (keys, values) in zip(stock.layers, kept, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
    cache.check()
    cache.close()


def test_all_tokens_are_taken_by_default(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Without a number the whole stock cache is taken, index keys included."""
    stock = read(shelf.stock(v32), zoo.prompt(v32, 1))
    cache = make_cache(shelf.served(v32))
    cache.take_over(stock)
    assert cache.get_seq_length() == v32.context
    for layer, source in zip(cache.layers, stock.layers, strict=True):
        assert torch.equal(layer.indexer_keys, source.indexer_keys)


@pytest.mark.parametrize("tokens", [0, -1, 241])
def test_more_than_there_is_can_not_be_taken(shelf: Any, make_cache: Any, v32: zoo.ModelCase, tokens: int) -> None:
    """A number of tokens that the stock cache does not hold is refused with the limit."""
    stock = read(shelf.stock(v32), zoo.prompt(v32, 1))
    cache = make_cache(shelf.served(v32))
    with pytest.raises(InputError, match=rf"tokens must be 1 to the 240 .* got {tokens}"):
        cache.take_over(stock, tokens)
    assert cache.get_seq_length() == 0


def llama_cache(layers: int) -> DynamicCache:
    """Return the stock cache of a model without an indexer, with a few tokens in it."""
    config = transformers.LlamaConfig(num_hidden_layers=layers, hidden_size=32, num_attention_heads=2)
    cache = DynamicCache(config=config)
    for layer in range(layers):
        cache.update(torch.zeros(1, 2, 5, 16), torch.zeros(1, 2, 5, 16), layer)
    return cache


def test_caches_of_other_kinds_are_refused(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Caches without rows, with other layers, empty ones and our own are refused, and nothing was changed."""
    dots = zoo.BY_NAME["dots3_note"]
    own = make_cache(shelf.served(v32))
    zoo.generate(shelf.served(v32), zoo.prompt(v32, 1, length=30), cache=own, max_new_tokens=2)
    foreign = [llama_cache(3), llama_cache(2), DynamicCache(config=shelf.stock(v32).config), DynamicCache(), own]
    foreign.append(read(shelf.stock(dots), zoo.prompt(dots, 1, length=30)))
    cache = make_cache(shelf.served(v32))
    for stock in foreign:
        with pytest.raises(InputError):
            cache.take_over(stock)
        assert cache.get_seq_length() == 0
    with pytest.raises(InputError, match="one row a token"):
        make_cache(shelf.served(dots)).take_over(foreign[-1])
    cache.take_over(read(shelf.stock(v32), zoo.prompt(v32, 1)))
    assert cache.get_seq_length() == v32.context


def test_rows_of_another_width_are_refused(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A stock cache of a model with other rows is refused, and the cache serves its own model afterwards."""
    other = zoo.build(v32, kv_lora_rank=16)
    cache = make_cache(shelf.served(v32))
    with pytest.raises(InputError):
        cache.take_over(read(other, zoo.prompt(v32, 1)))
    assert cache.get_seq_length() == 0
    sequences = zoo.generate(shelf.served(v32), zoo.prompt(v32, 3), cache=cache, max_new_tokens=TOKENS)
    assert torch.equal(sequences, zoo.generate(shelf.stock(v32), zoo.prompt(v32, 3), max_new_tokens=TOKENS))


def test_only_an_empty_cache_takes_over(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A cache that holds tokens refuses with their number, and takes over after a reset."""
    stock = read(shelf.stock(v32), zoo.prompt(v32, 1))
    cache = make_cache(shelf.served(v32))
    cache.take_over(stock, 7)
    with pytest.raises(StateError, match="holds 7 tokens; reset it"):
        cache.take_over(stock)
    assert cache.get_seq_length() == 7
    cache.reset()
    cache.take_over(stock)


def test_a_cache_without_room_stays_empty(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Tokens beyond the limit are refused with the knob, and fewer are taken."""
    stock = read(shelf.stock(v32), zoo.prompt(v32, 1))
    cache = make_cache(shelf.served(v32), max_positions=100)
    with pytest.raises((PositionError, HiSparseError), match="max_positions"):
        cache.take_over(stock)
    assert cache.get_seq_length() == 0
    cache.take_over(stock, 100)


def test_a_failure_half_way_leaves_the_cache_empty(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a later layer can't be stored, no layer keeps anything."""
    stock = read(shelf.stock(v32), zoo.prompt(v32, 1))
    cache = make_cache(shelf.served(v32))
    real = type(cache.layers[2]).update

    def fail(*_given: Any, **_named: Any) -> Any:
        raise OSError("unwritable")

    monkeypatch.setattr(cache.layers[2], "update", fail)
    with pytest.raises(OSError, match="unwritable"):
        cache.take_over(stock)
    monkeypatch.setattr(cache.layers[2], "update", real.__get__(cache.layers[2]))
    assert [layer.get_seq_length() for layer in cache.layers] == [0, 0, 0]
    cache.take_over(stock)
    assert cache.get_seq_length() == v32.context
