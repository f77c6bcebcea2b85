"""Which rows of which request are on the device, on the host or on their way: decided without a tensor."""

from hisparse.host.coordinator.coordinator import HiSparseCoordinator
from hisparse.host.coordinator.counters import CoordinatorStats, Counters, HostLevel
from hisparse.host.coordinator.messages import Activation, Admission, ResidencyUpdate, StepPlan, Transfer
from hisparse.host.coordinator.moves import MOVES, PageEvent, PageState, moves_table
from hisparse.host.coordinator.spilling import split_rows, written_rows
from hisparse.host.coordinator.telemetry import record_coordinator

__all__ = [
    "MOVES",
    "Activation",
    "Admission",
    "CoordinatorStats",
    "Counters",
    "HiSparseCoordinator",
    "HostLevel",
    "PageEvent",
    "PageState",
    "ResidencyUpdate",
    "StepPlan",
    "Transfer",
    "moves_table",
    "record_coordinator",
    "split_rows",
    "written_rows",
]
