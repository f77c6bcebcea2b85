"""Eviction policies: which key goes first when room is needed."""

from hisparse.policies.lru import LRUPolicy
from hisparse.policies.policy import EvictionPolicy
from hisparse.policies.registry import POLICIES, make_policy

__all__ = ["POLICIES", "EvictionPolicy", "LRUPolicy", "make_policy"]
