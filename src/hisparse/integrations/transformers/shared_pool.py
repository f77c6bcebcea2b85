"""One host pool for the caches that were given it, from the first tokens until the last cache closes."""

from collections import Counter
from collections.abc import Sequence

import torch

from hisparse.config import CacheSettings
from hisparse.errors import SettingError, StateError
from hisparse.host import HostPool
from hisparse.host.place import Place
from hisparse.integrations.transformers.device import pinned_bytes
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.layout import RowFormat


class SharedPool:
    """The host pool of a cache, to be given to others: ``HiSparseCache(config, host_pool=first.host_pool)``.

    Caches that share one belong to one loaded model and take turns: there is no lock, so only one thread at a
    time may use any of them.
    """

    def __init__(self, settings: CacheSettings, identity: str | None) -> None:
        """Note what the pool shall be; it is opened for the first batch.

        Args:
            settings: Place, size and page size of the pool.
            identity: Whose rows they are, for example path and revision of the model.

        Raises:
            SettingError: A pool that outlives the process has no identity or no size.
        """
        self._settings = settings
        self._identity = identity
        self._is_persistent = Place.parse(settings.host_pool).persist
        if self._is_persistent and identity is None:
            raise SettingError(
                f"host_pool {settings.host_pool!r} outlives the process, so it must say whose rows it has: "
                'give identity=, such as "path@revision" of the model'
            )
        if self._is_persistent and settings.host_pool_bytes is None:
            raise SettingError(f"host_pool {settings.host_pool!r} is found again by its size: give host_pool_bytes=")
        self._pool: HostPool | None = None
        self._formats: Sequence[RowFormat] = ()
        self._dtype: torch.dtype | None = None
        self._tickets: set[object] = set()
        self._is_closed = False

    @property
    def settings(self) -> CacheSettings:
        """The settings of the cache that made it; place, size and page size are those of every cache that has it."""
        return self._settings

    @property
    def identity(self) -> str | None:
        """Whose rows they are, where that was said."""
        return self._identity

    @property
    def is_persistent(self) -> bool:
        """Whether published pages outlive the process."""
        return self._is_persistent

    @property
    def dtype(self) -> torch.dtype | None:
        """Of the rows in the open pool."""
        return self._dtype if self._pool is not None else None

    @property
    def pool(self) -> HostPool | None:
        """The open pool, for its counts; None before the first tokens, and when nothing is in it any more."""
        return self._pool

    def join(self) -> object:
        """Count one more owner; returns the ticket to give to `leave`.

        Raises:
            StateError: The last owner has left.
        """
        if self._is_closed:
            raise StateError("this host pool was closed with the last cache that had it; keep one open")
        ticket = object()
        self._tickets.add(ticket)
        return ticket

    def outlives(self, ticket: object) -> bool:
        """Return whether pages published now can be found after this owner left."""
        return self._is_persistent or bool(self._tickets - {ticket})

    def leave(self, ticket: object) -> None:
        """Count one owner fewer; the last one closes the pool. Harmless when repeated."""
        self._tickets.discard(ticket)
        if not self._tickets:
            self._is_closed = True
            self._shut()

    def open_for(self, plan: TierPlan) -> HostPool:
        """Return the open pool, opened for `plan` if there is none.

        A pool that has one owner and no requests gives way to one of other rows, or, where its size was left to
        the batch, to a larger one; what was published in it is gone then.

        Raises:
            SettingError: Others share the pool and it has rows of another kind.
            StorageError, DiskFullError: It can't be opened.
        """
        pool, formats = self._pool, plan.pool_formats
        if pool is not None:
            is_free = len(self._tickets) == 1 and pool.used_pages + pool.reserved_pages == 0
            is_small = self._settings.host_pool_bytes is None and pool.pages < plan.pages
            if formats != self._formats and not is_free:
                raise SettingError(
                    f"the shared host pool has rows of {_named(self._formats)}, this model makes rows of "
                    f"{_named(formats)}; give this cache a pool of its own"
                )
            if formats == self._formats and not (is_small and is_free):
                return pool
            self._shut()
        storage = self._settings.host_pool
        # Page-locked memory where the device can copy from it by itself.
        allocate = pinned_bytes if plan.device.type == "cuda" and storage == "ram" else None
        self._pool = HostPool(
            plan.pages,
            self._settings.page_rows,
            formats,
            storage,
            allocate=allocate,
            identity=self._identity or "",
        )
        self._formats, self._dtype = formats, plan.dtype
        return self._pool

    def settle(self) -> None:
        """Give memory or file back where no request is running and nothing is kept."""
        pool = self._pool
        if pool is not None and not self._is_persistent and pool.free_pages == pool.pages and not pool.cached_pages:
            self._shut()

    def _shut(self) -> None:
        """Close the open pool, if there is one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _named(formats: Sequence[RowFormat]) -> str:
    """Return the formats in words."""
    counted = Counter(f"{row.name}[{row.elements}]" for row in formats)
    return ", ".join(f"{count} x {name}" for name, count in counted.items())
