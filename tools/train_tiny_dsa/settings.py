"""Everything that a training run can be told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Widths of the model, in elements; the defaults are those of the shipped one (9.6 M parameters)."""

    hidden: int = 256
    mlp: int = 768
    layers: int = 6
    heads: int = 4
    head_width: int = 64  # of the part of a query without position, and of a value
    rope_width: int = 64
    latent: int = 512  # with rope_width a row of 576 elements, as in DeepSeek-V3.2
    query_latent: int = 256
    index_heads: int = 4
    index_width: int = 128
    index_topk: int = 128
    max_positions: int = 32_768


@dataclass(frozen=True)
class Phase:
    """Sequences of one length, used until a fraction of the token budget is spent."""

    until_ratio: float
    sequence_tokens: int


@dataclass(frozen=True)
class Settings:
    """One training run. Equal settings on one machine give equal weights."""

    budget_tokens: int = 5_000_000
    batch_tokens: int = 4096
    phases: tuple[Phase, ...] = (Phase(0.45, 512), Phase(0.7, 1024), Phase(0.9, 2048), Phase(1.0, 4096))
    matrix_rate: float = 0.02  # Muon, for the 2-D weights of the blocks
    other_rate: float = 3e-3  # AdamW, for embeddings, norms and indexers
    warmup_steps: int = 30
    constant_ratio: float = 0.4  # of the budget at full rate; then linearly down
    indexer_weight: float = 0.5  # of the indexers' loss beside the language-model loss
    sampled_queries: int = 64  # queries a layer and step on which the indexers learn
    seed: int = 0
    validate_every_steps: int = 200
    validation_tokens: int = 2048  # length of one of the windows that `training.validate` averages

    def __post_init__(self) -> None:
        """Raise ValueError where the phases do not cover the budget or do not fit a batch."""
        if not self.phases or self.phases[-1].until_ratio < 1.0:
            raise ValueError("phases must end at until_ratio 1.0")
        longest = max(phase.sequence_tokens for phase in self.phases)
        if longest > self.batch_tokens:
            raise ValueError(f"batch_tokens must hold the longest sequence, {longest} tokens, got {self.batch_tokens}")
