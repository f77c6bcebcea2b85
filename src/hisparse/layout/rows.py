"""What one row is made of: the KV of one token in one layer."""

from dataclasses import dataclass

from hisparse.errors import SettingError

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The bytes of one row.

    Attributes:
        name: What a row holds, for example ``"bfloat16"`` or ``"fp8_ds_mla"``.
        elements: Values in a row; 576 (512 latent + 64 rotary) for DeepSeek-V3.2.
        row_bytes: Bytes really stored and copied for one row.
    """

    name: str
    elements: int
    row_bytes: int

    def __post_init__(self) -> None:
        """Refuse a row without values or bytes."""
        if self.elements < 1 or self.row_bytes < 1:
            raise SettingError(
                f"a row needs at least 1 element and 1 byte, got {self.elements} elements in {self.row_bytes} bytes"
            )

    @classmethod
    def dense(cls, name: str, elements: int) -> "RowFormat":
        """Return the format of `elements` unquantised values of dtype `name` (float32, bfloat16 or float16).

        Raises:
            SettingError: The dtype has no dense row format.
        """
        if name not in _ITEM_BYTES:
            raise SettingError(f"row dtype must be one of {sorted(_ITEM_BYTES)}, got {name!r}")
        return cls(name, elements, elements * _ITEM_BYTES[name])

    @classmethod
    def fp8_ds_mla(cls) -> "RowFormat":
        """Return DeepSeek's quantised MLA row: 512 fp8 latents, 4 float32 scales, 64 bfloat16 rotary values."""
        return cls("fp8_ds_mla", 576, 512 + 4 * 4 + 64 * 2)
