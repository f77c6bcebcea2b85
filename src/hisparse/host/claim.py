"""One request's hold on a pool."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Claim:
    """One request's hold on the pool; compared by identity.

    Attributes:
        max_positions: The longest the request may become.
        promised: Pages it may hold at most, ``ceil(max_positions / page_rows)``.
        pages: int32 ``[promised]``; the first `held` entries are its page table.
        held: Pages in its table now, ``ceil(length / page_rows)``.
        length: Positions it has now.
        published: Leading pages whose keys were given to the prefix index, or came from it.
    """

    max_positions: int
    promised: int
    pages: NDArray[np.int32] = field(repr=False)
    held: int = 0
    length: int = 0
    published: int = 0

    @property
    def table(self) -> NDArray[np.int32]:
        """int32 ``[held]``: the pool page of each page of the request (a view)."""
        return self.pages[: self.held]
