"""How long sequences are, and how fast weights move, as the token budget is spent."""

from tools.train_tiny_dsa.settings import Settings

FLOOR_RATIO = 0.02
"""Of the full rate, below which the rate never falls."""


def sequence_tokens(settings: Settings, spent_ratio: float) -> int:
    """Length of the next batch's sequences after `spent_ratio` (0 to 1) of the budget."""
    for phase in settings.phases:
        if spent_ratio < phase.until_ratio:
            return phase.sequence_tokens
    return settings.phases[-1].sequence_tokens


def rate_ratio(settings: Settings, step: int, spent_ratio: float) -> float:
    """Fraction of the full learning rates: a linear start, a flat stretch, a linear end."""
    start = min(1.0, (step + 1) / settings.warmup_steps)
    if spent_ratio < settings.constant_ratio:
        return start
    return start * max(FLOOR_RATIO, (1.0 - spent_ratio) / (1.0 - settings.constant_ratio))
