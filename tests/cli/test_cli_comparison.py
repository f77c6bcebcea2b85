"""The same prompts decoded three ways, and what counts as a failure."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hisparse.cli.comparison import VARIANTS, Comparison, Run, compare
from hisparse.cli.feed import MetricsFeed
from hisparse.cli.models import LoadedModel, load_model
from hisparse.cli.prompts import Prompt, cut_prompts
from hisparse.cli.report import to_json
from hisparse.cli.second_question import QUESTION, second_prompt
from hisparse.data import long_documents, tiny_dsa_path
from hisparse.errors import AccountingError
from hisparse.integrations.transformers import HiSparseCache

NEW_TOKENS = 6
ROW_BYTES = 576 * 4


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The shipped model over a pool on disk, with the smallest hot buffer."""
    pool = f"disk:{tmp_path_factory.mktemp('pool')}"
    return load_model(tiny_dsa_path(), dtype="float32", device="cpu", hot_slots=128, host_pool=pool)


@pytest.fixture
def prompts(loaded: LoadedModel) -> tuple[Prompt, ...]:
    """Two prompts of 322 and 160 tokens: the first ends in a chunk of one query at 107 tokens a chunk."""
    return cut_prompts(long_documents(2), loaded.tokenize, 482)


@pytest.fixture
def run(loaded: LoadedModel) -> Iterator[Run]:
    """Six tokens a request, nothing shown."""
    with MetricsFeed("tiny", None) as feed:
        yield Run(NEW_TOKENS, 107, feed.pipeline, lambda _stage: None, tuple(loaded.tokenize(QUESTION)))


def test_three_ways_agree_and_everything_is_counted(loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run) -> None:
    """All three caches give the same tokens, counts match the sizes, and bytes are misses times real rows."""
    assert [len(prompt.tokens) for prompt in prompts] == [322, 160]
    result = compare(loaded, prompts, run)
    assert result.failures == ()
    assert result.is_identical
    assert [len(request.stock.decoded.tokens) for request in result.requests] == [NEW_TOKENS] * 2
    # Five queries after each prompt and after the second question, and the last chunk of the first prompt.
    assert result.counts.selections.total == (5 + 1 + 5 + 5) * 6 * 128
    assert result.counts.host_to_device_bytes == result.counts.selections.miss * ROW_BYTES
    assert 0 < result.device_kv_bytes("hisparse") < result.device_kv_bytes("resident_absorbed")
    assert all(result.step_seconds(variant) > 0.0 for variant in VARIANTS)
    assert to_json(loaded, result)["new_tokens"] == 2 * NEW_TOKENS
    assert result.second is not None
    # One whole chunk of the last document, and the page of 64 that lies in it.
    question = result.second.context_tokens - 107
    assert (result.second.restored_tokens, question) == (64, len(loaded.tokenize(QUESTION)))
    assert result.second.recomputed.tokens == result.second.restored.tokens
    assert len(result.second.restored.tokens) == NEW_TOKENS


def test_stock_bytes_are_the_rows_and_keys_held(loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run) -> None:
    """The stock cache is charged exactly its rows and index keys, up to the last token but one."""
    result = compare(loaded, prompts[1:], run)
    assert result.device_kv_bytes("stock") == (160 + NEW_TOKENS - 1) * 6 * (576 + 128) * 4


def test_model_is_left_with_its_stock_attention(loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run) -> None:
    """After a comparison, also one that fails half way, the model attends as before and no pool is left open."""

    def fail(stage: str) -> None:
        if stage.endswith("HiSparse"):
            raise OSError(stage)

    before = loaded.model.config._attn_implementation
    with pytest.raises(OSError, match="HiSparse"):
        compare(loaded, prompts[1:], replace(run, on_stage=fail))
    assert loaded.model.config._attn_implementation == before
    assert list(Path(loaded.host_pool.removeprefix("disk:")).iterdir()) == []


def test_differing_tokens_are_a_failure(loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run) -> None:
    """One other token in one request makes the run a failure that names the request."""
    result = compare(loaded, prompts[1:], run)
    request = result.requests[0]
    other = replace(request.hisparse.decoded, tokens=(*request.hisparse.decoded.tokens[:-1], -1))
    broken = Comparison((replace(request, hisparse=replace(request.hisparse, decoded=other)),))
    assert broken.failures == ("tokens differ for typing",)
    assert to_json(loaded, broken)["tokens_identical"] is False


def test_lost_selections_are_a_failure(
    loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that forgets one hit in its totals is found out by two sums."""
    honest: Callable[[HiSparseCache], dict[str, Any]] = HiSparseCache.stats

    def forgetful(cache: HiSparseCache) -> dict[str, Any]:
        stats = honest(cache)
        return stats | {"selections": stats["selections"] | {"hit": stats["selections"]["hit"] - 1}}

    monkeypatch.setattr(HiSparseCache, "stats", forgetful)
    result = compare(loaded, prompts[1:], run)
    assert result.is_identical
    assert len(result.failures) == 2
    assert "expected 7,680 selections" in result.failures[0]
    assert result.failures[1].startswith("typing: hit of all index groups")


def test_failed_recount_is_a_failure(
    loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recount that does not hold is reported with its sum, after the run has ended."""

    def wrong(_cache: HiSparseCache) -> None:
        raise AccountingError("free 3 + used 9 != 17 pages")

    monkeypatch.setattr(HiSparseCache, "check", wrong)
    assert compare(loaded, prompts[1:], run).failures == ("typing: recount failed: free 3 + used 9 != 17 pages",)


def test_a_second_question_that_goes_wrong_fails_the_run(
    loaded: LoadedModel, prompts: tuple[Prompt, ...], run: Run
) -> None:
    """Other tokens, or other numbers of them than both prompts begin with, are named, and make the verdict a no."""
    result = compare(loaded, prompts[1:], run)
    second = result.second
    assert second is not None
    other = replace(second.recomputed, tokens=(0,) * NEW_TOKENS)
    broken = Comparison(result.requests, replace(second, recomputed=other, restored_tokens=0))
    assert not broken.is_identical
    assert broken.failures == (
        "tokens of the second question about typing differ",
        "0 tokens were restored, expected 64",
    )
    assert to_json(loaded, broken)["second_question"]["tokens_identical"] is False


def test_a_second_prompt_ends_its_document_at_a_chunk() -> None:
    """The document is cut to whole chunks, where it has one, and to the room there is; the question follows."""
    document = Prompt("name", tuple(range(100)))
    for chunk, room, length in ((30, 200, 90), (30, 80, 60), (128, 200, 100), (128, 40, 40), (30, -5, 1)):
        tokens = second_prompt(document, [7, 8], prefill_chunk=chunk, room=room)
        assert tokens == (*range(length), 7, 8)
