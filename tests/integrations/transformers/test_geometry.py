"""The geometry read off a config is that of the model built from it."""

from typing import Any

import pytest
import transformers
import zoo

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers.families import SUPPORTED
from hisparse.integrations.transformers.geometry import geometry_of


def config_of(case: zoo.ModelCase, **settings: Any) -> Any:
    """Make the config of a case."""
    return getattr(transformers, case.classes[0])(**{**case.settings, **settings})


ALL = zoo.CASES + zoo.STOCK_FIRST


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_groups_and_widths_are_those_of_the_model(case: zoo.ModelCase) -> None:
    """Index groups, row widths and stock layers are what the architecture says."""
    geometry = geometry_of(config_of(case))
    assert geometry.groups == case.groups
    assert geometry.row_layers == tuple(sorted(layer for group in case.groups for layer in group))
    assert {geometry.layers[layer].elements for layer in geometry.row_layers} == {case.row_elements}
    stock = [layer for i, layer in enumerate(geometry.layers) if i not in geometry.row_layers]
    assert all((layer.kind, layer.group, layer.elements) == ("stock", -1, 0) for layer in stock)
    assert len(geometry.layers) == case.settings["num_hidden_layers"]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_limits_are_those_of_the_config(case: zoo.ModelCase) -> None:
    """Top-k, the longest context and the tokens of a row come from the config."""
    geometry = geometry_of(config_of(case, index_topk=24, max_position_embeddings=777))
    is_compressed = case.model_type == "deepseek_v4"
    assert (geometry.model_type, geometry.top_k, geometry.max_positions) == (case.model_type, 24, 777)
    assert geometry.tokens_per_row == (2 if is_compressed else 1)
    assert geometry.rows_for(301) == (151 if is_compressed else 301)
    assert {geometry.layers[layer].kind for layer in geometry.row_layers} == {"compressed" if is_compressed else "rows"}


def test_every_supported_type_is_read() -> None:
    """The zoo has a model of each type that is served, so that none is served untested."""
    assert {case.model_type for case in zoo.CASES} == set(SUPPORTED)


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        ("FFFF", ((0,), (1,), (2,), (3,))),
        ("FSSS", ((0, 1, 2, 3),)),
        ("FFSF", ((0,), (1, 2), (3,))),
    ],
)
def test_shared_selections_make_groups(pattern: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """A layer that shares joins the group of the nearest layer before it that selects."""
    case = zoo.BY_NAME["glm_moe_dsa-FSSF"]
    assert geometry_of(config_of(case, index_topk_pattern=pattern)).groups == groups


def test_layers_in_between_keep_a_group_apart() -> None:
    """Sliding layers of dots3 belong to no group, wherever they stand, and cost no row."""
    case = zoo.BY_NAME["dots3_note"]
    types = ["sliding_attention", "indexed_attention", "indexed_attention", "sliding_attention"]
    geometry = geometry_of(config_of(case, layer_types=types))
    assert geometry.groups == ((1,), (2,))
    assert [layer.kind for layer in geometry.layers] == ["stock", "rows", "rows", "stock"]


@pytest.mark.parametrize("rate", [1, 4])
def test_compressed_rows_are_counted_in_entries(rate: int) -> None:
    """A deepseek_v4 entry stands for the tokens the config says, a part of them making one too."""
    case = zoo.BY_NAME["deepseek_v4"]
    rates = {"compressed_sparse_attention": rate, "heavily_compressed_attention": 32}
    geometry = geometry_of(config_of(case, compress_rates=rates))
    assert geometry.tokens_per_row == rate
    assert [geometry.rows_for(tokens) for tokens in (0, 1, 8, 9)] == [0, 1, 8 // rate, 8 // rate + 1]


@pytest.mark.parametrize("name", ["dots3_note", "deepseek_v4"])
def test_a_config_without_an_indexer_is_refused(name: str) -> None:
    """A supported type all of whose layers are stock ones has nothing to serve, and says so."""
    case = zoo.BY_NAME[name]
    config = config_of(case)
    config.layer_types = ["sliding_attention"] * len(config.layer_types)
    with pytest.raises(UnsupportedModelError, match=rf"{case.model_type}.*no layer with an indexer \(layer_types\)"):
        geometry_of(config)


def test_a_share_without_a_leader_is_refused() -> None:
    """A first layer that shares a selection has nobody to share it with, and is named."""
    config = config_of(zoo.BY_NAME["glm_moe_dsa-FSSF"])
    config.indexer_types = ["shared", "full", "shared", "full"]
    with pytest.raises(UnsupportedModelError, match="glm_moe_dsa: layer 0 shares a selection"):
        geometry_of(config)
