"""What the coordinator tells the workers: plain, versioned, the same in every process."""

from typing import Literal

import msgspec

from hisparse.errors import InputError

VERSION = 1

TransferKind = Literal["spill", "restore"]
SpillReason = Literal["eager", "pressure", "finish", "preempt"]


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """One copy of rows of one page, all layers, between a device page and a host page.

    A restore runs before the step computes, a spill after the step has written its rows.

    Attributes:
        id: Never used again.
        kind: ``"spill"`` copies from the device to the host, ``"restore"`` back.
        request: Whose page it is.
        host_page: Page of the host pool.
        device_page: Page of the device.
        first_row: First row in the page.
        rows: Rows to copy.
        reason: Why.
    """

    id: int
    kind: TransferKind
    request: str
    host_page: int
    device_page: int
    first_row: int
    rows: int
    reason: str


class ResidencyUpdate(msgspec.Struct, frozen=True, array_like=True):
    """Where pages of one request are on the device from this step on.

    Attributes:
        request: Whose pages.
        pages: The logical pages that changed; None where `device_pages` is the whole row from page 0 on.
        device_pages: The device page of each, -1 where it has none.
    """

    request: str
    pages: list[int] | None
    device_pages: list[int]


class Activation(msgspec.Struct, frozen=True, array_like=True):
    """A request gets a hot buffer.

    Attributes:
        request: Who.
        device_pages: The device pages its hot buffer lies in.
    """

    request: str
    device_pages: list[int]


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers do in one step.

    Attributes:
        step: Counted from 1.
        released: Requests that gave up their place on the device; done before anything else.
        activations: Requests that get a hot buffer.
        residency: What changed in the page rows of requests.
        transfers: Copies to make; each worker acknowledges each.
        waiting: Requests that may not compute in this step, because pages they read are being restored.
        version: Of this message.
    """

    step: int
    released: list[str]
    activations: list[Activation]
    residency: list[ResidencyUpdate]
    transfers: list[Transfer]
    waiting: list[str]
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the plan as msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "StepPlan":
        """Return the plan that `encode` wrote.

        Raises:
            InputError: The bytes are no plan, or one of another version.
        """
        try:
            plan = msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise InputError(f"these {len(data)} bytes are not a step plan: {error}") from error
        if plan.version != VERSION:
            raise InputError(f"a step plan of version {plan.version} arrived, this side reads version {VERSION}")
        return plan


class Admission(msgspec.Struct, frozen=True):
    """A request that was admitted.

    Attributes:
        request: Its id.
        prefix_positions: Positions at its beginning whose rows are in the host pool already; whole pages.
        host_pages: Pages of the host pool that it may hold at most.
        device_pages: Device pages that it is sure to get.
    """

    request: str
    prefix_positions: int
    host_pages: int
    device_pages: int
