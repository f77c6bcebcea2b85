"""What must hold between a cache's statistics and what was asked of it."""

from typing import Any

import zoo

OUTCOMES = ("hit", "miss", "resident", "padding")


def assert_accounts(cache: Any, case: zoo.ModelCase, *, batch: int, steps: int, element_bytes: int = 4) -> None:
    """Assert that every selection of `steps` decode steps is accounted for once, and every byte by a miss.

    Args:
        cache: The cache that decoded.
        case: Architecture, which says the index groups and the length of a row.
        batch: Rows decoded together.
        steps: Decode steps; the forward of the prompt is none.
        element_bytes: Bytes of one element of a row.
    """
    cache.check()
    stats = cache.stats()
    layers = {entry["layer"]: entry for entry in stats["layers"]}
    assert sorted(layers) == sorted(layer for group in case.groups for layer in group)

    selected = batch * zoo.TOP_K * steps
    row_bytes = case.row_elements * element_bytes
    total = dict.fromkeys(OUTCOMES, 0)
    for group in case.groups:
        leader = layers[group[0]]
        assert sum(leader[outcome] for outcome in OUTCOMES) == selected
        for outcome in OUTCOMES:
            assert {layers[layer][outcome] for layer in group} == {leader[outcome]}
            total[outcome] += leader[outcome]
        assert len({layers[layer]["group"] for layer in group}) == 1
        assert [layers[layer]["bytes"] for layer in group] == [leader["miss"] * row_bytes] * len(group)
    assert len({entry["group"] for entry in stats["layers"]}) == len(case.groups)
    assert stats["selections"] == total
    assert stats["host_to_device_bytes"] == sum(entry["bytes"] for entry in stats["layers"])
