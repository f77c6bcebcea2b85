"""Models and stock references of the zoo, made once a session."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zoo

from hisparse.integrations.transformers import HiSparseCache, enable


class Shelf:
    """Keeps one stock model, one served model and the stock references of each case."""

    def __init__(self) -> None:
        """Start empty: models are made on first use."""
        self._stock: dict[str, Any] = {}
        self._served: dict[tuple[str, str], Any] = {}
        self._references: dict[tuple[Any, ...], torch.Tensor] = {}

    def stock(self, case: zoo.ModelCase) -> Any:
        """Return the case's model on its stock backend."""
        if case.name not in self._stock:
            self._stock[case.name] = zoo.build(case)
        return self._stock[case.name]

    def served(self, case: zoo.ModelCase, attention: str = "auto") -> Any:
        """Return the case's model, same weights, enabled."""
        key = (case.name, attention)
        if key not in self._served:
            model = zoo.build(case)
            enable(model, attention=attention)
            self._served[key] = model
        return self._served[key]

    def reference(
        self, case: zoo.ModelCase, batch: int, *, max_new_tokens: int = zoo.NEW_TOKENS, **options: Any
    ) -> torch.Tensor:
        """Return what the stock cache generates for the case's standard prompt: int64[B, T + new tokens].

        Plain greedy decoding is done once per case and batch; shorter references are its beginnings.
        """
        given = zoo.prompt(case, batch)
        generated = max_new_tokens if options else zoo.NEW_TOKENS
        key = (case.name, batch, generated, *sorted(options.items()))
        if key not in self._references:
            self._references[key] = zoo.generate(self.stock(case), given, max_new_tokens=generated, **options)
        return self._references[key][:, : given.ids.shape[1] + max_new_tokens]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread: matrices this small only lose time on more, and sums keep one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    """Models and references shared by the whole session."""
    return Shelf()


@pytest.fixture
def make_cache() -> Iterator[Any]:
    """Make hot-buffer caches for a case; whatever the test made is recounted and closed at its end."""
    made: list[HiSparseCache] = []

    def make(case_or_model: Any, **settings: Any) -> HiSparseCache:
        config = getattr(case_or_model, "config", case_or_model)
        cache = HiSparseCache(config, **settings)
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.check()
        cache.close()


@pytest.fixture(params=zoo.CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> zoo.ModelCase:
    """Every architecture of the zoo."""
    return request.param


@pytest.fixture(params=[case for case in zoo.CASES if case.model_type != "deepseek_v4"], ids=lambda case: case.name)
def mla_case(request: pytest.FixtureRequest) -> zoo.ModelCase:
    """Every architecture whose rows are latents: all but the one that caches compressed entries."""
    return request.param


@pytest.fixture
def v32() -> zoo.ModelCase:
    """The reference architecture: an indexer in every layer."""
    return zoo.BY_NAME["deepseek_v32"]


@pytest.fixture(params=(1, 3), ids=("single", "padded3"))
def batch(request: pytest.FixtureRequest) -> int:
    """One full row, or three rows padded on the left."""
    return request.param
