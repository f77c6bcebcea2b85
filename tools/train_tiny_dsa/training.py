"""The training loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tools.train_tiny_dsa.attention import forward
from tools.train_tiny_dsa.schedule import rate_ratio, sequence_tokens
from tools.train_tiny_dsa.settings import Settings
from torch import nn
from torch.nn import functional
from transformers import DeepseekV32ForCausalLM

MATRIX_AXES = 2
VALIDATION_WINDOWS = 16
LARGEST_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Step:
    """What one step measured; `validation_loss` only where it was taken."""

    step: int
    tokens: int
    loss: float  # nats a token
    indexer_loss: float  # nats a query
    validation_loss: float | None


def train(
    model: DeepseekV32ForCausalLM,
    training: torch.Tensor,
    held_out: torch.Tensor,
    *,
    settings: Settings,
    report: Callable[[Step], None],
) -> float:
    """Train until the token budget is spent; changes the weights and torch's global generator.

    Args:
        model: float32 weights.
        training: int32 ``[tokens]``, longer than the longest sequence.
        held_out: int32 ``[tokens]``.
        settings: the run.
        report: called after every step.

    Returns:
        Held-out loss at the end, in nats a token.

    Raises:
        ValueError: the training stream is shorter than one sequence.
    """
    _check_stream(training, settings)
    torch.manual_seed(settings.seed)
    matrices, others = _split_weights(model)
    optimizers = (
        (torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.01), settings.matrix_rate),
        (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), settings.other_rate),
    )
    for step, spent, batch in _batches(training, settings):
        ratio = rate_ratio(settings, step, spent / settings.budget_tokens)
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * ratio
        loss, indexer_loss = _losses(model, batch, settings.sampled_queries)
        (loss + settings.indexer_weight * indexer_loss).backward()
        nn.utils.clip_grad_norm_(others, LARGEST_GRADIENT_NORM)  # Muon normalises its own updates
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        due = (step + 1) % settings.validate_every_steps == 0
        validation = validate(model, held_out, settings.validation_tokens) if due else None
        report(Step(step + 1, spent + batch[:, 1:].numel(), loss.item(), indexer_loss.item(), validation))
    return validate(model, held_out, settings.validation_tokens)


@torch.no_grad()
def validate(model: DeepseekV32ForCausalLM, stream: torch.Tensor, length: int) -> float:
    """Mean loss of dense attention on fixed windows of a stream, in nats a token. Reads only."""
    length = min(length, len(stream) - 1)
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(0, len(stream) - length, (VALIDATION_WINDOWS,), generator=generator)
    windows = [stream[start : start + length + 1].long()[None] for start in starts]
    return sum(_language_loss(forward(model, x[:, :-1])[0], x).item() for x in windows) / len(windows)


def _check_stream(training: torch.Tensor, settings: Settings) -> None:
    longest = max(phase.sequence_tokens for phase in settings.phases)
    if len(training) <= longest:
        raise ValueError(f"the corpus must be longer than one sequence of {longest} tokens, got {len(training)} tokens")


def _split_weights(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, for which Muon is made, and everything else."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        is_block_matrix = weight.dim() == MATRIX_AXES and not {"embed_tokens", "indexer", "lm_head"} & set(
            name.split(".")
        )
        (matrices if is_block_matrix else others).append(weight)
    return matrices, others


def _batches(stream: torch.Tensor, settings: Settings) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Step number, tokens spent before it, and int64 ``[B, S + 1]`` windows until the budget is spent."""
    spent = step = 0
    while spent < settings.budget_tokens:
        length = sequence_tokens(settings, spent / settings.budget_tokens)
        count = settings.batch_tokens // length
        starts = torch.randint(0, len(stream) - length, (count,))
        yield step, spent, torch.stack([stream[start : start + length + 1].long() for start in starts])
        spent += count * length
        step += 1


def _losses(model: nn.Module, batch: torch.Tensor, sampled_queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, indexer_loss = forward(model, batch[:, :-1], sampled_queries)
    return _language_loss(logits, batch), indexer_loss


def _language_loss(logits: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
