"""From the setting that says where rows are to the storage that keeps them."""

from collections.abc import Sequence
from itertools import groupby

from hisparse.errors import SettingError
from hisparse.host.file import FileStorage
from hisparse.host.geometry import Geometry
from hisparse.host.persist import KeptStorage
from hisparse.host.place import Place
from hisparse.host.storage import Allocate, RamStorage, Storage
from hisparse.layout import RowFormat


def open_storage(
    geometry: Geometry, storage: str, *, allocate: Allocate | None, verify: bool, identity: str
) -> Storage:
    """Open what `storage` names, for rows of `geometry`; a file that is kept is found by `identity`.

    Raises:
        SettingError: The setting has no meaning, or contradicts another.
        StorageError: The memory, the directory or the file cannot be used.
        DiskFullError: The disk has no room even for an empty pool.
    """
    place = Place.parse(storage)
    if place.directory is None:
        return RamStorage(geometry, allocate)
    if allocate is not None:
        raise SettingError(f'allocate provides memory and means nothing for {storage!r}; use storage "ram"')
    if place.persist:
        return KeptStorage(geometry, place, identity, verify=verify)
    return FileStorage(geometry, str(place.directory), verify=verify)


def identity_of(identity: str, layers: Sequence[RowFormat]) -> str:
    """Return `identity` and what the rows of each layer are, as text."""
    formats = ((f"{row.name}[{row.elements}] of {row.row_bytes} B", row) for row in layers)
    counted = [(text, len([*group])) for text, group in groupby(formats, key=lambda one: one[0])]
    return "; ".join([identity, *(f"{number} layers {text}" for text, number in counted)])
