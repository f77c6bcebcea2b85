"""What a model's config says about its rows: which layers have them, who shares a selection, how wide they are."""

from dataclasses import dataclass
from typing import Any, Literal

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers.families import check_family
from hisparse.layout import pages_for

LayerKind = Literal["rows", "compressed", "stock"]

_KINDS: dict[str, LayerKind] = {"indexed_attention": "rows", "compressed_sparse_attention": "compressed"}


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer.

    Attributes:
        kind: ``"rows"``: one row a token; ``"compressed"``: one row every few tokens; ``"stock"``: no selection
            is made, the layer keeps its stock cache.
        group: Number of the index group, -1 for a stock layer.
        elements: Values in a row, 0 for a stock layer.
        index_elements: Values in an index key, 0 for a layer that makes no selection of one row a token.
    """

    kind: LayerKind
    group: int
    elements: int
    index_elements: int = 0


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """All layers of one model.

    Attributes:
        model_type: As the config names it.
        top_k: Rows one query selects at most.
        tokens_per_row: Tokens one row stands for; 1 unless rows are compressed.
        max_positions: Tokens the model can address.
        layers: One entry per layer.
    """

    model_type: str
    top_k: int
    tokens_per_row: int
    max_positions: int
    layers: tuple[LayerGeometry, ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer numbers of each index group, the leader first."""
        count = max(layer.group for layer in self.layers) + 1
        return tuple(tuple(i for i, layer in enumerate(self.layers) if layer.group == group) for group in range(count))

    @property
    def row_layers(self) -> tuple[int, ...]:
        """Numbers of the layers whose rows are tiered."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.kind != "stock")

    @property
    def can_restore(self) -> bool:
        """Whether rows and index keys are all that a request needs to go on: every layer keeps one row a token."""
        return all(layer.kind == "rows" for layer in self.layers)

    @property
    def index_layers(self) -> tuple[int, ...]:
        """Numbers of the layers whose index keys are kept with published pages."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.index_elements) if self.can_restore else ()

    def rows_for(self, tokens: int) -> int:
        """Return how many rows of one layer `tokens` tokens make."""
        return pages_for(tokens, self.tokens_per_row)


def geometry_of(config: Any) -> ModelGeometry:
    """Read the geometry off a transformers config.

    Raises:
        UnsupportedModelError: The model type is not one this package serves; says why.
    """
    if not hasattr(config, "get_text_config"):
        raise UnsupportedModelError(f"a transformers config is needed (model.config), got {type(config).__name__}")
    text = config.get_text_config(decoder=True)
    check_family(text)
    kinds = [_KINDS.get(layer_type, "stock") for layer_type in text.layer_types]
    if "compressed" in kinds:
        return _compressed_geometry(text, kinds)
    types = getattr(text, "indexer_types", None) or ["full"] * len(kinds)
    layers, group = [], -1
    for layer, kind in enumerate(kinds):
        if kind == "stock":
            layers.append(LayerGeometry(kind, -1, 0))
            continue
        group += types[layer] == "full"
        if group < 0:
            raise UnsupportedModelError(
                f"{text.model_type}: layer {layer} shares a selection, but no layer before it makes one (indexer_types)"
            )
        index_elements = int(text.index_head_dim) if types[layer] == "full" else 0
        layers.append(LayerGeometry(kind, group, _latent_elements(text, layer), index_elements))
    if group < 0:
        raise UnsupportedModelError(f"{text.model_type}: this config has no layer with an indexer (layer_types)")
    return ModelGeometry(text.model_type, text.index_topk, 1, text.max_position_embeddings, tuple(layers))


def _latent_elements(text: Any, layer: int) -> int:
    """Return the width of an MLA row: the latent and the rotary key."""
    per_layer = text.per_layer_config[layer] if hasattr(text, "per_layer_config") else text
    return int(per_layer.kv_lora_rank + per_layer.qk_rope_head_dim)


def _compressed_geometry(text: Any, kinds: list[LayerKind]) -> ModelGeometry:
    """Every compressed layer selects for itself; an entry is one shared key and value head."""
    layers, group = [], -1
    for kind in kinds:
        if kind == "compressed":
            group += 1
            layers.append(LayerGeometry(kind, group, text.head_dim))
        else:
            layers.append(LayerGeometry(kind, -1, 0))
    rate = int(text.compress_rates["compressed_sparse_attention"])
    return ModelGeometry(text.model_type, text.index_topk, rate, text.max_position_embeddings, tuple(layers))
