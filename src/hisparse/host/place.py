"""Where a pool keeps its rows, as settings write it: ``"ram"``, ``"disk:DIR"`` or ``"disk:DIR?OPTION&OPTION"``."""

from dataclasses import dataclass, fields
from pathlib import Path

from hisparse.errors import SettingError

_DISK = "disk:"
_FORMS = '"ram" or "disk:DIR"'


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pool keeps its rows.

    Attributes:
        directory: The directory of the pool's file; None for memory.
        persist: Whether published pages survive the process.
        fsync: Whether they survive the machine too: publishing waits for the disk.
        replace: Whether a file that cannot be used is overwritten; otherwise it is set aside.
        untrusted: Whether a directory or file is used that other users own or can write.
    """

    directory: Path | None = None
    persist: bool = False
    fsync: bool = False
    replace: bool = False
    untrusted: bool = False

    def __post_init__(self) -> None:
        """Refuse options that need another one.

        Raises:
            SettingError: An option of persistent files stands without ``persist``.
        """
        lone = [name for name in OPTIONS[1:] if getattr(self, name)]
        if lone and not self.persist:
            raise SettingError(f"{lone[0]} means nothing for a pool that ends with its process; add persist")

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read a setting; what follows the last ``?`` are options.

        Raises:
            SettingError: It has none of the known forms, or an option nobody knows.
        """
        if text == "ram":
            return cls()
        name = text.removeprefix(_DISK)
        if "?" not in name:
            name += "?"
        directory, _, options = name.rpartition("?")
        if not text.startswith(_DISK) or not directory:
            raise SettingError(f"storage must be {_FORMS}, got {text!r}")
        chosen = options.split("&") if options else []
        for option in chosen:
            if option not in OPTIONS:
                raise SettingError(
                    f"storage {text!r} has the option {option!r}, expected {', '.join(OPTIONS)}; "
                    "if the name of the directory has a question mark, end it with another"
                )
        return cls(Path(directory).expanduser(), **dict.fromkeys(chosen, True))


OPTIONS = tuple(field.name for field in fields(Place))[1:]
