"""A cache's part in a shared pool: the tokens it holds, what their pages are called, what was asked for and found."""

from collections.abc import Mapping

import numpy as np
import torch

from hisparse.errors import ArrayError, StateError, UnsupportedModelError
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.naming import PageNaming
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.integrations.transformers.shared_pool import SharedPool
from hisparse.integrations.transformers.stats import PrefixCounts
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.integrations.transformers.tokens import SeenTokens, TokenRecord

_MATRIX = 2


class PrefixKeeper:
    """Publishes the pages of one cache's requests, and finds pages for new ones.

    Attributes:
        tokens: What the requests hold, as far as that is known.
        counts: Tokens asked for and found so far.
    """

    def __init__(self, geometry: ModelGeometry, shared: SharedPool, naming: PageNaming) -> None:
        """Join the owners of `shared`.

        Raises:
            StateError: The pool was closed.
        """
        self.tokens = TokenRecord()
        self.counts = PrefixCounts()
        self._geometry = geometry
        self._shared = shared
        self._naming = naming
        self._asked_tokens = 0
        self._ticket = shared.join()

    @property
    def shared(self) -> SharedPool:
        """The pool."""
        return self._shared

    @property
    def outlives(self) -> bool:
        """Whether pages published now can be found after this cache is closed."""
        return self._shared.outlives(self._ticket)

    def note(self, start: int, seen: SeenTokens | None) -> None:
        """Note the tokens of a pass that began after `start` of them."""
        if self._geometry.can_restore:
            self.tokens.append(start, seen)

    def open_store(self, plan: TierPlan, batch: int) -> TieredRows:
        """Admit a batch that begins with nothing.

        Raises:
            CapacityError, StorageError, SettingError: As `SharedPool.open_for` and `TieredRows`.
        """
        try:
            store = TieredRows(plan, batch, self._shared.open_for(plan))
        except BaseException:
            self._shared.settle()
            raise
        self._count(self._asked_tokens, 0)
        return store

    def find_store(self, plan: TierPlan, input_ids: torch.Tensor) -> TieredRows | None:
        """Admit a batch that begins with what the pool has of its prompts; None where it has nothing.

        What was asked is counted when the batch starts, here or in `open_store`: asking again counts once.

        Raises:
            CapacityError, StorageError: As `SharedPool.open_for` and `TieredRows`.
        """
        batch, length = input_ids.shape
        plan.check_room(length, batch)
        prompts = input_ids.detach().cpu().numpy().astype(np.int64)
        # The last token is computed in any case, to get the next one.
        keys = [self._naming.keys(plan, prompt[:-1]) for prompt in prompts]
        self._asked_tokens = batch * len(keys[0]) * plan.settings.page_rows
        pool = self._shared.pool
        if pool is None and not self._shared.is_persistent:
            return None
        if pool is None:
            pool = self._shared.open_for(plan)
        common = min(pool.ledger.index.lookup(each).size for each in keys)
        if common == 0:
            return None
        store = TieredRows(plan, batch, pool, prefixes=[each[:common] for each in keys])
        if store.host.length == 0:
            store.close()
            return None
        return store

    def adopted(self, store: TieredRows, input_ids: torch.Tensor) -> int:
        """Note and count what `store` begins with, once the cache has it; returns its tokens."""
        restored = store.host.length
        self.tokens.append(0, SeenTokens(input_ids[:, :restored], None, None))
        self._count(self._asked_tokens, store.batch * restored)
        return restored

    def publish(self, store: TieredRows, index_keys: Mapping[int, torch.Tensor]) -> int:
        """Let later requests find the full pages of `store`; returns how many are new to them.

        Args:
            store: The batch whose tokens were noted.
            index_keys: ``[B, T, D]`` of each layer that has them.

        Raises:
            StorageError: The disk can't take the index keys.
        """
        if not are_storable(index_keys, store.plan):
            return 0
        known = self.tokens.known()
        keys = [self._naming.keys(store.plan, tokens) for tokens in known]
        return sum(store.host.publish(request, each, index_keys) for request, each in enumerate(keys))

    def forget(self) -> None:
        """End the requests."""
        self.tokens.clear()
        self._asked_tokens = 0

    def leave(self) -> None:
        """Be no owner of the pool any more."""
        self._shared.leave(self._ticket)

    def _count(self, queried: int, hit: int) -> None:
        self.counts.queried_tokens += queried
        self.counts.hit_tokens += hit
        self._asked_tokens = 0


def are_storable(index_keys: Mapping[int, torch.Tensor], plan: TierPlan) -> bool:
    """Return whether all index keys are there, in the dtype that the pool has room for."""
    is_whole = bool(index_keys) and set(index_keys) == set(plan.geometry.index_layers)
    return is_whole and all(keys.dtype == plan.dtype for keys in index_keys.values())


def check_adoptable(geometry: ModelGeometry, input_ids: torch.Tensor, *, held: int | None) -> None:
    """Refuse prompts that can't begin with stored pages; `held` is what an open cache holds, None of an empty one.

    Raises:
        UnsupportedModelError: The model keeps more than rows and index keys.
        ArrayError: Not a matrix of token ids.
        StateError: The cache is not empty.
    """
    if not geometry.can_restore:
        kept = {"compressed": "compression buffers"}.get(
            geometry.layers[geometry.row_layers[0]].kind, "sliding windows"
        )
        raise UnsupportedModelError(
            f"{geometry.model_type} can't go on from stored pages: it also keeps {kept}, which are not stored; "
            "run the whole prompt"
        )
    if input_ids.ndim != _MATRIX or 0 in input_ids.shape or input_ids.dtype not in (torch.int64, torch.int32):
        raise ArrayError(f"input_ids must be int64[B, T], got {input_ids.dtype}{list(input_ids.shape)}")
    if held is not None:
        raise StateError(f"adopt a prefix into an empty cache: this one holds requests of {held} tokens; reset it")
