"""From the setting to the storage: which one it is, and what a kept file is named after."""

from pathlib import Path

import numpy as np
import pytest

from hisparse.errors import SettingError
from hisparse.host.file import FileStorage
from hisparse.host.geometry import Geometry
from hisparse.host.opening import identity_of, open_storage
from hisparse.host.persist import KeptStorage
from hisparse.host.storage import RamStorage
from hisparse.layout import RowFormat

LAYERS = [RowFormat("latent", 97, 97), RowFormat("latent", 97, 97), RowFormat("index", 24, 48)]
GEOMETRY = Geometry.of(4, 4, LAYERS)


@pytest.mark.parametrize(
    ("storage", "kind"), [("ram", RamStorage), ("disk:{}", FileStorage), ("disk:{}?persist", KeptStorage)]
)
def test_the_setting_says_which_storage(tmp_path: Path, storage: str, kind: type) -> None:
    """Memory, a private file or a kept one: each setting opens its own kind."""
    opened = open_storage(GEOMETRY, storage.format(tmp_path), allocate=None, verify=True, identity="me")
    assert type(opened) is kind
    assert (opened.recovery is not None) == (kind is KeptStorage)
    opened.close()


@pytest.mark.parametrize("options", ["", "?persist"])
def test_memory_of_ones_own_is_for_memory(tmp_path: Path, options: str) -> None:
    """An allocator beside a directory is a contradiction, named with the setting, and makes no file."""
    storage = f"disk:{tmp_path / 'pools'}{options}"
    with pytest.raises(SettingError, match=r'^allocate provides memory and means nothing for .*; use storage "ram"$'):
        open_storage(GEOMETRY, storage, allocate=lambda size: np.zeros(size, np.uint8), verify=True, identity="")
    assert [*tmp_path.iterdir()] == []


def test_the_identity_tells_row_formats_apart() -> None:
    """Name, elements, bytes and order of the formats are part of the identity, and equal neighbours are counted."""
    assert identity_of("m", LAYERS) == "m; 2 layers latent[97] of 97 B; 1 layers index[24] of 48 B"
    others = [
        LAYERS[:2],
        LAYERS[::-1],
        [*LAYERS, LAYERS[0]],
        [LAYERS[0], LAYERS[1], RowFormat("index", 48, 48)],
        [LAYERS[0], LAYERS[1], RowFormat("key", 24, 48)],
    ]
    assert len({identity_of("m", layers) for layers in [LAYERS, *others]} | {identity_of("n", LAYERS)}) == 7
