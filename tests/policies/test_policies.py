"""Every registered policy keeps the contract; each against its own oracle."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hisparse.errors import SettingError, StateError
from hisparse.policies import POLICIES, EvictionPolicy, LRUPolicy, make_policy

KEYS = st.integers(0, 9)
each_policy = pytest.mark.parametrize("name", sorted(POLICIES))


@each_policy
def test_a_policy_offers_exactly_what_may_go(name: str) -> None:
    """Whatever the order of calls, the victim is a key inserted and not removed, and there is one while any is left."""

    @given(st.lists(st.tuples(st.sampled_from(["insert", "touch", "remove", "evict"]), KEYS), max_size=60))
    @settings(deadline=None)
    def holds(calls: list[tuple[str, int]]) -> None:
        policy, inside = make_policy(name), set[object]()
        for call, key in calls:
            if call == "evict" and (victim := policy.victim()) is not None:
                policy.remove(victim)
                inside.remove(victim)
            elif call == "insert" and key not in inside:
                policy.insert(key)
                inside.add(key)
            elif call == "touch" and key in inside:
                policy.touch(key)
            elif call == "remove" and key in inside:
                policy.remove(key)
                inside.remove(key)
            assert len(policy) == len(inside)
            assert policy.victim() in inside if inside else policy.victim() is None

    holds()


@each_policy
def test_reading_the_victim_changes_nothing(name: str) -> None:
    """The same victim is offered until it is removed."""
    policy = make_policy(name)
    for key in "abc":
        policy.insert(key)
    assert len({policy.victim() for _ in range(5)}) == 1


@each_policy
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda policy: policy.insert("a"), "has key 'a' already"),
        (lambda policy: policy.touch("b"), "has no key 'b'"),
        (lambda policy: policy.remove("b"), "has no key 'b'"),
    ],
)
def test_calls_that_do_not_fit_are_refused(name: str, call: Callable[[EvictionPolicy], None], message: str) -> None:
    """A key inserted twice, or used without being there, is named and changes nothing."""
    policy = make_policy(name)
    policy.insert("a")
    with pytest.raises(StateError, match=message):
        call(policy)
    assert (len(policy), policy.victim()) == (1, "a")


def test_an_unknown_policy_is_named() -> None:
    """A name without a policy is refused with the names there are."""
    with pytest.raises(SettingError, match=r"policy must be one of lru, got 'mru'"):
        make_policy("mru")


def test_a_hit_saves_a_key() -> None:
    """With a, b and c inserted and a touched, b goes first."""
    policy = LRUPolicy()
    for key in "abc":
        policy.insert(key)
    policy.touch("a")
    order = []
    while (victim := policy.victim()) is not None:
        order.append(victim)
        policy.remove(victim)
    assert order == ["b", "c", "a"]


class LRUMachine(RuleBasedStateMachine):
    """The policy against a list with the least recent key first."""

    def __init__(self) -> None:
        """Begin without keys."""
        super().__init__()
        self.policy = LRUPolicy()
        self.order: list[int] = []

    @rule(key=KEYS)
    def insert(self, key: int) -> None:
        """A new key is the most recent."""
        if key not in self.order:
            self.policy.insert(key)
            self.order.append(key)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        """A touched key becomes the most recent."""
        key = data.draw(st.sampled_from(self.order))
        self.policy.touch(key)
        self.order.remove(key)
        self.order.append(key)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A removed key leaves the order of the others."""
        key = data.draw(st.sampled_from(self.order))
        self.policy.remove(key)
        self.order.remove(key)

    @invariant()
    def the_oldest_goes_first(self) -> None:
        """The victim is the head of the list."""
        assert len(self.policy) == len(self.order)
        assert self.policy.victim() == (self.order[0] if self.order else None)


TestLRU = LRUMachine.TestCase
TestLRU.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
