"""The first bytes of a file that outlives its process: what it is, of which shape, and whose rows it has."""

import hashlib
import struct
from dataclasses import dataclass

from hisparse.host.geometry import Geometry

MAGIC = b"HISPKEPT"
VERSION = 1
MAX_HEADER_BYTES = 1 << 20
_DIGEST_BYTES = 32
# magic, version, bytes of the header, stamp, page rows, layers, pages, bytes of the identity.
_FIXED = struct.Struct("<8sIIQIIQI")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself.

    Attributes:
        geometry: Pages, rows and layers.
        identity: Whose rows they are: model, revision and the like, as text.
        stamp: A random number; every entry of the file carries it.
    """

    geometry: Geometry
    identity: str
    stamp: int = 0

    def encode(self) -> bytes:
        """Return the bytes, a digest of all of them last."""
        text = self.identity.encode("utf-8", "surrogatepass")
        row_bytes = self.geometry.row_bytes
        layers = struct.pack(f"<{len(row_bytes)}Q", *row_bytes)
        num_bytes = _FIXED.size + len(layers) + len(text) + _DIGEST_BYTES
        shape = (self.geometry.page_rows, len(row_bytes), self.geometry.pages)
        body = _FIXED.pack(MAGIC, VERSION, num_bytes, self.stamp, *shape, len(text)) + layers + text
        return body + hashlib.sha256(body).digest()

    def refusal(self, data: bytes) -> tuple[str, str]:
        """Say why a file that begins with `data` is not one of this geometry and identity.  Reads only.

        Returns:
            A reason in one word and a clause; two empty texts where it is one.
        """
        if data[: len(MAGIC)] != MAGIC:
            return "foreign", f"it begins with {data[: len(MAGIC)]!r}, a pool's with {MAGIC!r}"
        version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
        if version != VERSION:
            return "version", f"it is of version {version}, expected {VERSION}"
        try:
            found = decode(data)
        except (struct.error, ValueError):
            return "damaged", "its header is damaged"
        if found.identity != self.identity:
            return "identity", f"it has rows of {found.identity!r}, expected {self.identity!r}"
        if found.geometry != self.geometry:
            return "geometry", f"it has {_shape(found.geometry)}, expected {_shape(self.geometry)}"
        return "", ""


def decode(data: bytes) -> Header:
    """Read a header of this version from the first bytes of a file.

    Raises:
        struct.error: The bytes end too soon.
        ValueError: They are not what was written.
    """
    _, _, num_bytes, stamp, page_rows, layers, pages, text_bytes = _FIXED.unpack_from(data)
    body, digest = data[: num_bytes - _DIGEST_BYTES], data[num_bytes - _DIGEST_BYTES : num_bytes]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the digest of the header differs")
    row_bytes = struct.unpack_from(f"<{layers}Q", body, _FIXED.size)
    text = body[len(body) - text_bytes :].decode("utf-8", "surrogatepass")
    return Header(Geometry(pages, page_rows, row_bytes), text, stamp)


def _shape(geometry: Geometry) -> str:
    kinds = sorted(set(geometry.row_bytes))
    rows = " and ".join(map(str, kinds)) if len(kinds) < 4 else f"{kinds[0]} to {kinds[-1]}"  # noqa: PLR2004  a list of more is no message
    return f"{geometry.pages} pages of {geometry.page_rows} rows in {len(geometry.row_bytes)} layers of {rows} B"
