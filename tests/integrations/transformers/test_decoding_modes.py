"""Every way of decoding that a stock cache allows gives the stock tokens from the hot buffer too."""

import threading
from typing import Any

import pytest
import torch
import zoo
from accounting import assert_accounts
from transformers import DynamicCache

from hisparse.errors import HostPoolFullError, StateError

SHORT = 40


def stock_cache(model: Any) -> DynamicCache:
    """Make an empty stock cache for a model."""
    return DynamicCache(config=model.config)


@pytest.mark.parametrize(("batch", "chunk"), [(1, 60), (3, 64)])
def test_chunked_prefill(shelf: Any, make_cache: Any, case: zoo.ModelCase, *, batch: int, chunk: int) -> None:
    """A prompt read in chunks gives the tokens of the stock cache under the same chunks."""
    model = shelf.served(case)
    cache = make_cache(model)
    options = {"max_new_tokens": SHORT, "prefill_chunk_size": chunk}
    sequences = zoo.generate(model, zoo.prompt(case, batch), cache=cache, **options)
    assert torch.equal(sequences, shelf.reference(case, batch, **options))
    assert_accounts(cache, case, batch=batch, steps=SHORT - 1)


def test_last_chunk_of_one_token(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A last chunk of one token is one more decode step, with the stock tokens."""
    given = zoo.prompt(case, 1, length=181)
    model = shelf.served(case)
    cache = make_cache(model)
    options = {"max_new_tokens": SHORT, "prefill_chunk_size": 60}
    sequences = zoo.generate(model, given, cache=cache, **options)
    assert torch.equal(sequences, zoo.generate(shelf.stock(case), given, **options))
    assert_accounts(cache, case, batch=1, steps=SHORT)


def converse(model: Any, case: zoo.ModelCase, batch: int, cache: Any) -> torch.Tensor:
    """Generate, append a user's turn, generate, append one token, generate, all on one cache."""
    given = zoo.prompt(case, batch)
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=20)
    for turn in (23, 1):
        words = zoo.prompt(case, batch, length=turn, seed=turn).ids
        ids = torch.cat([sequences, words], dim=1)
        mask = torch.cat([given.mask, torch.ones_like(ids[:, given.mask.shape[1] :])], dim=1)
        sequences = zoo.generate(model, zoo.Prompt(ids=ids, mask=mask), cache=cache, max_new_tokens=20)
    return sequences


def test_conversation_on_one_cache(shelf: Any, make_cache: Any, case: zoo.ModelCase, batch: int) -> None:
    """A second and a third turn continue from the rows of the first, with the stock tokens."""
    stock, model = shelf.stock(case), shelf.served(case)
    expected = converse(stock, case, batch, stock_cache(stock))
    assert torch.equal(converse(model, case, batch, make_cache(model)), expected)


@pytest.mark.parametrize("hot_ratio", [1, 8])
def test_prompt_lookup_crops(shelf: Any, make_cache: Any, mla_case: zoo.ModelCase, hot_ratio: int) -> None:
    """Rejected draft tokens are cropped off the cache, and the tokens are those of stock prompt lookup."""
    half = zoo.prompt(mla_case, 1, length=100)
    given = zoo.Prompt(ids=half.ids.repeat(1, 2), mask=half.mask.repeat(1, 2))
    options = {"max_new_tokens": SHORT, "prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
    model, stock = shelf.served(mla_case), shelf.stock(mla_case)
    expected = zoo.generate(stock, given, cache=stock_cache(stock), **options)
    cache = make_cache(model, hot_slots=hot_ratio * zoo.TOP_K)
    assert torch.equal(zoo.generate(model, given, cache=cache, **options), expected)


def test_assistant_model_crops(shelf: Any, make_cache: Any, mla_case: zoo.ModelCase) -> None:
    """An assistant drafts on its own stock cache while the main model verifies from the hot buffer."""
    assistant = shelf.stock(zoo.BY_NAME["axk2"])
    given = zoo.prompt(mla_case, 1)
    options = {"max_new_tokens": SHORT, "assistant_model": assistant}
    model, stock = shelf.served(mla_case), shelf.stock(mla_case)
    expected = zoo.generate(stock, given, cache=stock_cache(stock), **options)
    assert torch.equal(zoo.generate(model, given, cache=make_cache(model), **options), expected)


def test_compressed_rows_refuse_drafts(shelf: Any, make_cache: Any) -> None:
    """Compressed entries can't be rolled back: transformers refuses drafts and the cache stays usable."""
    case = zoo.BY_NAME["deepseek_v4"]
    model = shelf.served(case)
    cache = make_cache(model)
    given = zoo.prompt(case, 1)
    with pytest.raises(ValueError, match="stateful"):
        zoo.generate(model, given, cache=cache, prompt_lookup_num_tokens=4)
    cache.check()
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 1, max_new_tokens=SHORT))


@pytest.mark.parametrize("host_pool", ["ram", "disk"])
def test_beams(shelf: Any, make_cache: Any, case: zoo.ModelCase, *, host_pool: str, tmp_path: Any) -> None:
    """Three beams are reordered with their rows, and the best one is the stock one."""
    given = zoo.prompt(case, 1)
    options = {"max_new_tokens": SHORT, "num_beams": 3}
    model = shelf.served(case)
    cache = make_cache(model, host_pool="ram" if host_pool == "ram" else f"disk:{tmp_path}")
    sequences = zoo.generate(model, given, cache=cache, **options)
    assert torch.equal(sequences, shelf.reference(case, 1, **options))
    assert_accounts(cache, case, batch=3, steps=SHORT - 1)


def test_sampling(shelf: Any, make_cache: Any, case: zoo.ModelCase, batch: int) -> None:
    """Sampling draws the same tokens from the same seed."""
    given = zoo.prompt(case, batch)
    options = {"max_new_tokens": SHORT, "do_sample": True, "temperature": 0.8, "top_k": 20}
    # Building a model draws random numbers: both are built before the seed is set.
    model, stock = shelf.served(case), shelf.stock(case)
    cache = make_cache(model)
    torch.manual_seed(5)
    expected = zoo.generate(stock, given, **options)
    torch.manual_seed(5)
    assert torch.equal(zoo.generate(model, given, cache=cache, **options), expected)


def step(model: Any, cache: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Run tokens int64[B, S] through the model and return the greedy next ones, int64[B, 1]."""
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=True, **zoo.cache_argument(model, cache)).logits
    return logits[:, -1:].argmax(dim=-1)


def fork_and_join(model: Any, case: zoo.ModelCase, cache: Any) -> list[torch.Tensor]:
    """Read one prompt, go on with three different tokens, keep two of the three in another order, go on."""
    token = step(model, cache, zoo.prompt(case, 1).ids)
    cache.batch_repeat_interleave(3)
    tokens = [(token.repeat(3, 1) + torch.arange(3)[:, None]) % zoo.VOCABULARY]
    for _ in range(20):
        tokens.append(step(model, cache, tokens[-1]))
    cache.batch_select_indices(torch.tensor([2, 0]))
    tokens.append(tokens[-1][[2, 0]])
    for _ in range(20):
        tokens.append(step(model, cache, tokens[-1]))
    return tokens


def test_batch_is_repeated_and_selected(shelf: Any, make_cache: Any, mla_case: zoo.ModelCase) -> None:
    """One prompt read once continues as three rows, then as two of them, with the stock tokens."""
    stock, model = shelf.stock(mla_case), shelf.served(mla_case)
    expected = fork_and_join(stock, mla_case, stock_cache(stock))
    cache = make_cache(model, max_positions=320, host_pool_bytes=1 << 20)
    for got, wanted in zip(fork_and_join(model, mla_case, cache), expected, strict=True):
        assert torch.equal(got, wanted)


def test_batch_beyond_the_pool_is_not_repeated(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A pool sized for one request refuses to continue it as three, and the one goes on as it was."""
    given = zoo.prompt(v32, 1)
    model = shelf.served(v32)
    cache = make_cache(model, max_positions=320)
    tokens = [step(model, cache, given.ids)]
    with pytest.raises(HostPoolFullError, match="host_pool_bytes"):
        cache.batch_repeat_interleave(3)
    cache.check()
    for _ in range(SHORT - 1):
        tokens.append(step(model, cache, tokens[-1]))
    expected = zoo.new_tokens(given, shelf.reference(v32, 1, max_new_tokens=SHORT))
    assert torch.equal(torch.cat(tokens, dim=1), expected)


@pytest.mark.parametrize(
    "rearrange",
    [
        lambda cache: cache.batch_repeat_interleave(3),
        lambda cache: cache.batch_select_indices(torch.tensor([0, 0])),
        lambda cache: cache.crop(-1),
    ],
    ids=("repeat", "select", "crop"),
)
def test_compressed_rows_refuse_to_be_rearranged(shelf: Any, make_cache: Any, rearrange: Any) -> None:
    """What compressed entries can't follow is refused with nothing changed: decoding goes on as before."""
    case = zoo.BY_NAME["deepseek_v4"]
    given = zoo.prompt(case, 1)
    model = shelf.served(case)
    cache = make_cache(model, max_positions=512, host_pool_bytes=1 << 20)
    tokens = [step(model, cache, given.ids)]
    with pytest.raises(StateError, match="deepseek_v4"):
        rearrange(cache)
    cache.check()
    for _ in range(SHORT - 1):
        tokens.append(step(model, cache, tokens[-1]))
    expected = zoo.new_tokens(given, shelf.reference(case, 1, max_new_tokens=SHORT))
    assert torch.equal(torch.cat(tokens, dim=1), expected)


def test_stock_cache_on_an_enabled_model(shelf: Any, case: zoo.ModelCase, batch: int) -> None:
    """An enabled model gives the stock tokens with its stock cache, and without naming a cache."""
    model = shelf.served(case)
    given = zoo.prompt(case, batch)
    expected = shelf.reference(case, batch, max_new_tokens=SHORT)
    assert torch.equal(zoo.generate(model, given, max_new_tokens=SHORT), expected)
    sequences = zoo.generate(model, given, cache=stock_cache(model), max_new_tokens=SHORT)
    assert torch.equal(sequences, expected)


def test_forward_without_a_cache(shelf: Any, case: zoo.ModelCase) -> None:
    """An enabled model without any cache gives the stock logits bit for bit."""
    given = zoo.prompt(case, 3)
    with torch.no_grad():
        expected = shelf.stock(case)(**given.inputs, use_cache=False).logits
        logits = shelf.served(case)(**given.inputs, use_cache=False).logits
    assert torch.equal(logits, expected)


def test_two_caches_take_turns(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Two requests on caches of their own, decoded in turns by one model, don't touch each other."""
    model = shelf.served(case)
    caches = [make_cache(model), make_cache(model, hot_slots=4 * zoo.TOP_K)]
    prompts = [zoo.prompt(case, 1), zoo.prompt(case, 1, length=170, seed=9)]
    tokens = [[step(model, cache, given.ids)] for cache, given in zip(caches, prompts, strict=True)]
    for _ in range(SHORT - 1):
        for cache, row in zip(caches, tokens, strict=True):
            row.append(step(model, cache, row[-1]))
    for given, row in zip(prompts, tokens, strict=True):
        expected = zoo.generate(shelf.stock(case), given, max_new_tokens=SHORT)
        assert torch.equal(torch.cat(row, dim=1), zoo.new_tokens(given, expected))


def test_two_threads_share_a_model(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Two threads that decode with one model and their own caches each get the stock tokens."""
    model = shelf.served(v32)
    given = [zoo.prompt(v32, 1), zoo.prompt(v32, 3)]
    caches = [make_cache(model), make_cache(model)]
    sequences: dict[int, torch.Tensor] = {}

    def decode(idx: int) -> None:
        torch.set_num_threads(1)
        sequences[idx] = zoo.generate(model, given[idx], cache=caches[idx], max_new_tokens=SHORT)

    threads = [threading.Thread(target=decode, args=(idx,)) for idx in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for idx, batch in enumerate((1, 3)):
        assert torch.equal(sequences[idx], shelf.reference(v32, batch, max_new_tokens=SHORT))


def test_reset_and_reuse(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A reset cache serves another batch size as a new one would, and its counts go on."""
    model = shelf.served(case)
    cache = make_cache(model)
    steps = 0
    for batch in (3, 1):
        sequences = zoo.generate(model, zoo.prompt(case, batch), cache=cache, max_new_tokens=SHORT)
        assert torch.equal(sequences, shelf.reference(case, batch, max_new_tokens=SHORT))
        cache.check()
        steps += batch * (SHORT - 1)
        cache.reset()
        assert cache.get_seq_length() == 0
    assert_accounts(cache, case, batch=1, steps=steps)
