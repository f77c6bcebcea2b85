"""The same prompts decoded with three caches, and a second question about the last one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from transformers import DynamicCache

from hisparse.cli.counts import CacheCounts
from hisparse.cli.decoding import Decoded, Sizes, decode_greedily, median, tensor_bytes
from hisparse.cli.models import LoadedModel
from hisparse.cli.prompts import Prompt
from hisparse.cli.second_question import SecondQuestion, ask_again, second_prompt
from hisparse.errors import AccountingError, InputError
from hisparse.integrations.transformers import ResidentCache, enable
from hisparse.telemetry import TelemetryPipeline

VARIANTS = ("stock", "resident_absorbed", "hisparse")


@dataclass(frozen=True)
class Variant:
    """One request decoded one way, and the device bytes its cache held at the end."""

    decoded: Decoded
    device_kv_bytes: int


@dataclass(frozen=True)
class RequestComparison:
    """One request decoded three ways.

    Attributes:
        prompt: What was continued.
        stock: The model's own cache and attention.
        resident_absorbed: All rows on the device, attention in the absorbed form: what is left of the difference to
            HiSparse is what tiering costs.
        hisparse: Rows on the host.
        counts: What the HiSparse cache counted.
        failures: Sums that did not hold in the HiSparse cache; empty when all is well.
    """

    prompt: Prompt
    stock: Variant
    resident_absorbed: Variant
    hisparse: Variant
    counts: CacheCounts
    failures: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether all three gave the same tokens."""
        return self.stock.decoded.tokens == self.resident_absorbed.decoded.tokens == self.hisparse.decoded.tokens


@dataclass(frozen=True)
class Comparison:
    """All requests of one run; sums are over requests, as if their caches were held at once.

    Attributes:
        requests: The requests.
        second: A second question about the document of the last one; None where none was asked, or the model can't
            restore rows.
    """

    requests: tuple[RequestComparison, ...]
    second: SecondQuestion | None = None

    @property
    def is_identical(self) -> bool:
        """Whether every request gave the same tokens three times, and the second question both times."""
        is_second_identical = self.second is None or self.second.is_identical
        return is_second_identical and all(request.is_identical for request in self.requests)

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that makes the run a failure, one sentence each."""
        differing = [request.prompt.name for request in self.requests if not request.is_identical]
        tokens = [f"tokens differ for {', '.join(differing)}"] if differing else []
        sums = [f"{request.prompt.name}: {failure}" for request in self.requests for failure in request.failures]
        return (*tokens, *sums, *(() if self.second is None else self.second.failures))

    @property
    def counts(self) -> CacheCounts:
        """Counts of all HiSparse caches."""
        return reduce(CacheCounts.plus, (request.counts for request in self.requests))

    def device_kv_bytes(self, variant: str) -> int:
        """Device bytes of all requests' caches of one of `VARIANTS`."""
        return sum(getattr(request, variant).device_kv_bytes for request in self.requests)

    def step_seconds(self, variant: str) -> float:
        """Median decode step of one of `VARIANTS`, over all requests' steps."""
        return median([s for request in self.requests for s in getattr(request, variant).decoded.step_seconds])


@dataclass(frozen=True)
class Run:
    """How to decode, and where to say what happens meanwhile.

    Attributes:
        new_tokens: Tokens to decode for each request.
        prefill_chunk: Prompt tokens in one forward pass.
        telemetry: Where counts go.
        on_stage: Called with what is decoded next.
        question: Tokens of the second question about the last document; empty where none is asked.
    """

    new_tokens: int
    prefill_chunk: int
    telemetry: TelemetryPipeline
    on_stage: Callable[[str], None]
    question: tuple[int, ...] = ()


def compare(loaded: LoadedModel, prompts: Sequence[Prompt], run: Run) -> Comparison:
    """Decode every prompt three ways, request by request, so that the ways meet the same state of the machine."""
    handle = enable(loaded.model)  # probes the model once; the rounds below only switch
    handle.disable()
    compared = [_compare_one(loaded, prompt, run, is_last=prompt is prompts[-1]) for prompt in prompts]
    return Comparison(tuple(request for request, _ in compared), compared[-1][1])


def _compare_one(
    loaded: LoadedModel, prompt: Prompt, run: Run, *, is_last: bool
) -> tuple[RequestComparison, SecondQuestion | None]:
    """Decode one prompt three ways; of the last one, ask a second question too."""
    model = loaded.model
    run.on_stage(f"{prompt.name}: stock cache")
    stock_cache = DynamicCache(config=model.config)
    stock = _decode(model, stock_cache, prompt.tokens, run=run)
    stock_bytes = tensor_bytes(stock_cache)
    handle = enable(model, self_check=False)
    try:
        run.on_stage(f"{prompt.name}: resident cache")
        resident_cache = ResidentCache(model.config)
        resident = _decode_resident(model, resident_cache, prompt, run=run, stock=stock, stock_cache=stock_cache)
        run.on_stage(f"{prompt.name}: HiSparse")
        asked = _asked_about(loaded, prompt, run) if is_last and run.question else None
        hisparse, counts, failures, second = _decode_hisparse(loaded, prompt, run, asked=asked)
    finally:
        handle.disable()
    request = RequestComparison(
        prompt,
        Variant(stock, stock_bytes),
        Variant(resident, resident_cache.device_kv_bytes),
        Variant(hisparse, counts.device_kv_bytes),
        counts,
        failures,
    )
    return request, second


def _asked_about(loaded: LoadedModel, prompt: Prompt, run: Run) -> Prompt:
    """Return the second question about the document of `prompt`, as long as the model has positions for it."""
    room = loaded.max_positions - len(run.question) - run.new_tokens
    return Prompt(prompt.name, second_prompt(prompt, run.question, prefill_chunk=run.prefill_chunk, room=room))


def _decode(model: Any, cache: Any, tokens: Sequence[int], *, run: Run) -> Decoded:
    return decode_greedily(model, cache, tokens, new_tokens=run.new_tokens, prefill_chunk=run.prefill_chunk)


def _decode_hisparse(
    loaded: LoadedModel, prompt: Prompt, run: Run, *, asked: Prompt | None
) -> tuple[Decoded, CacheCounts, tuple[str, ...], SecondQuestion | None]:
    """Decode from the host pool, and ask a second question where there is one; counts are of both."""
    context = len(prompt.tokens)
    longest = max(context, 0 if asked is None else len(asked.tokens))
    sizes = Sizes(run.new_tokens, run.prefill_chunk, loaded.hot_slots, loaded.top_k)
    cache = loaded.open_cache(longest + run.new_tokens, run.telemetry)
    try:
        decoded = _decode(loaded.model, cache, prompt.tokens, run=run)
        device_kv_bytes = cache.stats()["device_kv_bytes"]
        queries = sizes.selecting_queries(context)
        second = None
        if asked is not None:
            run.on_stage(f"{asked.name}: second question")
            held = (*prompt.tokens, *decoded.tokens)
            chunk = run.prefill_chunk
            second = ask_again(loaded.model, cache, asked, held=held, new_tokens=run.new_tokens, prefill_chunk=chunk)
        if second is not None:
            queries += sizes.selecting_queries(second.context_tokens, held_tokens=second.restored_tokens)
        counts = CacheCounts.from_stats({**cache.stats(), "device_kv_bytes": device_kv_bytes})
        failures = counts.violations(queries * len(counts.groups) * loaded.top_k)
        return decoded, counts, (*failures, *_recount(cache)), second
    finally:
        cache.close()


def _recount(cache: Any) -> tuple[str, ...]:
    try:
        cache.check()
    except AccountingError as error:
        return (f"recount failed: {error}",)
    return ()


def _decode_resident(
    model: Any, cache: ResidentCache, prompt: Prompt, *, run: Run, stock: Decoded, stock_cache: Any
) -> Decoded:
    """Decode from resident rows, taking over the prefill of the stock cache where all layers keep rows.

    Both caches run the stock attention over the prompt, so a second prefill would write the same rows again; taking
    them over saves a quarter of the demo.
    """
    try:
        cache.take_over(stock_cache, len(prompt.tokens))
    except InputError:
        return _decode(model, cache, prompt.tokens, run=run)
    return _continue(model, cache, prompt.tokens, stock=stock, new_tokens=run.new_tokens)


def _continue(model: Any, cache: Any, tokens: Sequence[int], *, stock: Decoded, new_tokens: int) -> Decoded:
    """Decode after a prefill that was taken over: its first token came with it."""
    first = stock.tokens[0]
    rest = decode_greedily(model, cache, [*tokens, first], new_tokens=new_tokens - 1, prefill_chunk=None)
    return Decoded((first, *rest.tokens), stock.prefill_seconds, rest.step_seconds)
