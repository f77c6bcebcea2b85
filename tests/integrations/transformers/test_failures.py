"""A failure in the middle of decoding serves no wrong token and leaves the recount right."""

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo

from hisparse.errors import CorruptPoolError, DiskFullError, StateError, StorageError
from hisparse.host import HostPool
from hisparse.integrations.transformers.layers import RowLayer

SHORT = 20


class FailingOnce:
    """Stands for a method of the pool and raises at one call."""

    def __init__(self, method: Any, call: int, error: Exception) -> None:
        """Raise `error` at the call number `call` (from 0) of `method`."""
        self._method = method
        self._left = call
        self._error = error

    def bound(self) -> Any:
        """Return a function to put in the method's place."""

        def call(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                raise self._error
            return self._method(*given, **named)

        return call


def step(model: Any, cache: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Run one forward and return the greedy next token."""
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=True, **zoo.cache_argument(model, cache)).logits
    return logits[:, -1:].argmax(dim=-1)


def decode(model: Any, cache: Any, token: torch.Tensor) -> None:
    """Run some decode steps from `token` on."""
    for _ in range(SHORT):
        token = step(model, cache, token)


def stock_layers(cache: Any) -> list[Any]:
    """Return the layers that keep no rows in the store."""
    return [layer for layer in cache.layers if not isinstance(layer, RowLayer)]


@pytest.mark.parametrize(
    ("method", "call", "error"),
    [
        ("gather", 4, StorageError("the disk went away")),
        ("write", 1, DiskFullError("no room for layer 1 of the prompt")),
        ("write", 5, DiskFullError("no room in the middle of a step")),
    ],
    ids=("read", "prompt", "step"),
)
def test_failure_between_layers(
    shelf: Any,
    make_cache: Any,
    case: zoo.ModelCase,
    monkeypatch: pytest.MonkeyPatch,
    *,
    method: str,
    call: int,
    error: Any,
) -> None:
    """A pass that failed half way is undone and decoding goes on; where a layer can't go back, only a reset helps."""
    model = shelf.served(case)
    cache = make_cache(model)
    given = zoo.prompt(case, 1)
    real = getattr(HostPool, method)
    with monkeypatch.context() as patch:
        patch.setattr(HostPool, method, FailingOnce(real, call, error).bound())
        with pytest.raises(type(error), match=str(error)):
            zoo.generate(model, given, cache=cache, max_new_tokens=SHORT)
    cache.check()
    expected = shelf.reference(case, 1, max_new_tokens=SHORT)

    def go_on() -> Any:
        known = max(cache.get_seq_length() + 1, given.ids.shape[1])
        options = {"max_new_tokens": expected.shape[1] - known, "do_sample": False, **zoo.cache_argument(model, cache)}
        return model.generate(expected[:, :known], **options)

    try:
        sequences = go_on()
    except StateError:
        # Rows can always go back; a stock layer that has seen the pass can't.
        if not stock_layers(cache):
            raise
        cache.reset()
        sequences = go_on()
    assert torch.equal(sequences, expected)
    cache.check()


def test_a_corrupted_pool_file(shelf: Any, make_cache: Any, case: zoo.ModelCase, tmp_path: Path) -> None:
    """Rows changed on disk behind the pool's back are never served: decoding stops and says so."""
    model = shelf.served(case)
    cache = make_cache(model, host_pool=f"disk:{tmp_path}", max_positions=512)
    given = zoo.prompt(case, 1)
    token = step(model, cache, given.ids)
    (pool_file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    content = bytearray(pool_file.read_bytes())
    for offset in range(4096, len(content)):
        content[offset] ^= 0x41
    with pool_file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(content[4096:])
    with pytest.raises(CorruptPoolError):
        decode(model, cache, token)
    cache.reset()
    cache.check()
