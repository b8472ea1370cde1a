from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.limits.admission import release
from callgate.limits.queue import Queue
from tests.limits.helpers import AGENT, CALLER, SECOND_NS, TOOL, make_rate, make_slots

if TYPE_CHECKING:
    from callgate.limits.rate import Rate
    from callgate.limits.slots import Slots

FOREVER_NS = 1 << 62


@dataclass(eq=False, slots=True)
class Call:
    """A call that waits."""

    caller_key: str
    tool_key: str = "search"
    rates: tuple[Rate, ...] = ()
    slots: tuple[Slots, ...] = ()
    paced: bool = False
    number: int = 0


@dataclass
class Backlog:
    """A queue in which every caller always has calls waiting, each for its own tool."""

    tools: dict[str, str]
    """Caller → the tool that it calls."""
    shared: Slots
    places: dict[str, Slots]
    queue: Queue[Call] = field(default_factory=Queue)
    entries: list[str] = field(default_factory=list)

    def fill(self) -> None:
        waiting = Counter(key for key, tools in self.queue._callers.items() for _ in tools)
        for caller, tool in self.tools.items():
            if not waiting[caller]:
                self.queue.push(Call(caller, tool, (), (self.shared, self.places[tool])))

    def enter(self) -> None:
        """Let in whoever fits, with as many calls behind as are needed."""
        while True:
            self.fill()
            entered = self.queue.enter(0)
            self.entries += [call.caller_key for call in entered]
            if not entered:
                return


def entered(queue: Queue[Call], now_ns: int = 0) -> list[str]:
    return [call.caller_key for call in queue.enter(now_ns)]


def push(queue: Queue[Call], callers: str, *slots: Slots, rates: tuple[Rate, ...] = ()) -> None:
    for caller in callers:
        queue.push(Call(caller, "search", rates, slots))


def test_a_waiting_call_holds_nothing() -> None:
    queue: Queue[Call] = Queue()
    free, full, rate = make_slots(1, scope=TOOL), make_slots(1, used=1), make_rate(1)
    push(queue, "a", free, full, rates=(rate,))

    assert entered(queue) == []

    assert free.used == 0
    assert rate.saved(0) == 1


def test_who_enters_holds_its_places() -> None:
    queue: Queue[Call] = Queue()
    slots, rate = make_slots(2), make_rate(9)
    push(queue, "aaa", slots, rates=(rate,))

    assert entered(queue) == ["a", "a"]

    assert slots.used == 2
    assert rate.saved(0) == 7
    assert len(queue) == 1


def test_callers_enter_in_turn_whatever_one_of_them_sends() -> None:
    queue: Queue[Call] = Queue()
    slots = make_slots(6)
    push(queue, "aaaaaaaabbcc", slots)

    assert "".join(entered(queue)) == "abcabc"


def test_the_turn_goes_on_where_it_stopped() -> None:
    queue: Queue[Call] = Queue()
    slots = make_slots(1)
    push(queue, "aaabbbccc", slots)

    order = ""
    for _ in range(9):
        order += "".join(entered(queue))
        release((slots,))

    assert order == "abcabcabc"


def test_of_two_callers_of_one_tool_none_starves_while_a_third_uses_another() -> None:
    # A caller that is passed over keeps its turn. Moved behind the others, as it once was,
    # `b` met `x` only when `a` had just taken it.
    queue: Queue[Call] = Queue()
    agent, x, y = make_slots(9), make_slots(1, scope=TOOL), make_slots(1, scope=TOOL)
    order = ""
    for _ in range(8):
        queue.push(Call("a", "x", (), (agent, x)))
        queue.push(Call("b", "x", (), (agent, x)))
        queue.push(Call("c", "y", (), (agent, y)))
    for _ in range(8):
        order += "".join(entered(queue))
        release((agent, x))
        release((agent, y))

    assert Counter(order) == {"a": 4, "b": 4, "c": 8}


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=6),
    st.fixed_dictionaries({tool: st.integers(1, 3) for tool in "xyz"}),
    st.integers(1, 6),
    st.lists(st.integers(0, 99), max_size=60),
)
def test_backlogged_callers_of_a_tool_each_get_their_part_of_its_entries_less_one(
    tools: list[str], limits: dict[str, int], shared: int, releases: list[int]
) -> None:
    backlog = Backlog(
        {f"caller{n}": tool for n, tool in enumerate(tools)},
        make_slots(shared),
        {tool: make_slots(limit, scope=TOOL) for tool, limit in limits.items()},
    )
    backlog.enter()
    running = list(backlog.entries)
    for pick in releases:
        tool = backlog.tools[running.pop(pick % len(running))]
        release((backlog.shared, backlog.places[tool]))
        seen = len(backlog.entries)
        backlog.enter()
        running += backlog.entries[seen:]

        count = Counter(backlog.entries)
        for tool in set(tools):
            rivals = [caller for caller, used in backlog.tools.items() if used == tool]
            share = sum(count[caller] for caller in rivals) / len(rivals)
            assert min(count[caller] for caller in rivals) >= share - 1


@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from("abcde")), max_size=80),
)
def test_of_k_backlogged_callers_each_gets_a_kth_of_the_entries_less_one(
    steady: list[str], limit: int, storm: list[tuple[int, str]]
) -> None:
    # `steady` callers wait throughout; all others come, flood and go as they like.
    queue: Queue[Call] = Queue()
    slots = make_slots(limit, used=limit)
    for caller in steady:
        push(queue, caller * 100, slots)
    count: Counter[str] = Counter()
    for flood, other in storm:
        push(queue, f"{other}!" if other in steady else other * (flood % 3), slots)
        release((slots,))
        count.update(entered(queue))

        k = len({*count, *steady})
        assert min(count[caller] for caller in steady) >= count.total() / k - 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_each_callers_calls_of_a_tool_enter_in_the_order_in_which_they_came(
    calls: list[tuple[str, str]], room: list[int]
) -> None:
    queue: Queue[Call] = Queue()
    slots = make_slots(1)
    for number, (caller, tool) in enumerate(calls):
        queue.push(Call(caller, tool, (), (slots,), number=number))

    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for places in [*room, len(calls) + 1]:
        slots.limit, slots.used = places, 0
        for call in queue.enter(0):
            order[call.caller_key, call.tool_key].append(call.number)

    assert sum(map(len, order.values())) == len(calls)
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_a_callers_tools_take_turns() -> None:
    queue: Queue[Call] = Queue()
    slots = make_slots(1)
    for tool in "xxxyz":
        queue.push(Call("a", tool, (), (slots,)))

    order = ""
    for _ in range(5):
        order += "".join(call.tool_key for call in queue.enter(0))
        release((slots,))

    assert order == "xyzxx"


def test_a_tool_that_cannot_enter_does_not_hold_back_its_callers_other_tools() -> None:
    queue: Queue[Call] = Queue()
    queue.push(Call("a", "x", (), (make_slots(1, used=1, scope=TOOL),)))
    queue.push(Call("a", "y", (), (make_slots(1, scope=TOOL),)))

    assert [call.tool_key for call in queue.enter(0)] == ["y"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "push", "remove", "enter"]),
            st.sampled_from("abc"),
            st.sampled_from("xy"),
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
def test_a_call_leaves_from_anywhere_and_leaves_nothing_behind(
    steps: list[tuple[str, str, str, int]],
) -> None:
    queue: Queue[Call] = Queue()
    slots = make_slots(1)
    waiting: list[Call] = []
    for step, caller, tool, pick in steps:
        if step == "push":
            waiting.append(Call(caller, tool, (), (slots,)))
            queue.push(waiting[-1])
        elif step == "remove" and waiting:
            call = waiting.pop(pick % len(waiting))
            assert queue.remove(call)
            assert not queue.remove(call)
        elif step == "enter":
            slots.used = 0
            for call in queue.enter(0):
                waiting.remove(call)
        assert len(queue) == len(waiting)

    for call in waiting:
        assert queue.remove(call)
    assert len(queue) == 0
    assert not queue._callers


def test_a_call_of_another_queue_is_not_removed() -> None:
    queue: Queue[Call] = Queue()
    push(queue, "a", make_slots(1))

    assert not queue.remove(Call("a"))
    assert not queue.remove(Call("b"))
    assert len(queue) == 1


class TestRefill:
    """When to come back without anybody leaving."""

    def test_without_rates_there_is_nothing_to_come_back_for(self) -> None:
        queue: Queue[Call] = Queue()
        push(queue, "a", make_slots(1, used=1))

        queue.enter(0)

        assert queue.refill_ns is None

    def test_at_the_refill_somebody_enters_and_a_nanosecond_earlier_nobody(self) -> None:
        queue: Queue[Call] = Queue()
        rate = make_rate(1, wait=True)
        push(queue, "ab", make_slots(9), rates=(rate,))
        assert entered(queue, 5) == ["a"]
        refill_ns = queue.refill_ns

        assert refill_ns == 5 + SECOND_NS
        assert entered(queue, refill_ns - 1) == []
        assert entered(queue, refill_ns) == ["b"]
        assert queue.refill_ns is None

    def test_the_earliest_of_several_rates_counts(self) -> None:
        queue: Queue[Call] = Queue()
        slow, quick = (make_rate(1, ns, scope=CALLER, wait=True) for ns in (900, 100))
        push(queue, "a", rates=(slow,))
        push(queue, "b", rates=(quick,))
        push(queue, "a", rates=(slow,))
        push(queue, "b", rates=(quick,))
        queue.enter(0)

        assert queue.refill_ns == 100

    def test_a_call_held_back_by_a_rate_is_paced_and_one_by_a_slot_is_not(self) -> None:
        queue: Queue[Call] = Queue()
        rate = make_rate(1, scope=CALLER, wait=True)
        rate.take(0)
        paced = Call("a", rates=(rate,))
        blocked = Call("b", slots=(make_slots(1, used=1, scope=TOOL),), paced=True)
        queue.push(paced)
        queue.push(blocked)

        queue.enter(0)

        assert paced.paced
        assert not blocked.paced

    @given(st.data())
    @settings(max_examples=300)
    def test_nobody_who_could_enter_by_waiting_is_slept_over(self, data: st.DataObject) -> None:
        queue: Queue[Call] = Queue()
        agent = make_rate(3, 300, burst=data.draw(st.integers(1, 3)), wait=True)
        places = make_slots(data.draw(st.integers(1, 9)), scope=AGENT)
        tools = {
            tool: (
                make_rate(1, data.draw(st.integers(1, 999)), scope=TOOL, wait=True),
                make_slots(1, used=data.draw(st.integers(0, 1)), scope=TOOL),
            )
            for tool in "xy"
        }
        calls = []
        for caller, tool in data.draw(
            st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=12)
        ):
            own_rate, own_slots = tools[tool]
            calls.append(Call(caller, tool, (agent, own_rate), (places, own_slots)))
            queue.push(calls[-1])

        now_ns = 0
        for _ in range(12):
            for call in queue.enter(now_ns):
                calls.remove(call)
            fits_ns = min((entry_ns(call, now_ns) for call in calls), default=FOREVER_NS)
            refill_ns = FOREVER_NS if queue.refill_ns is None else queue.refill_ns
            assert now_ns < refill_ns <= fits_ns
            if refill_ns == FOREVER_NS:
                break
            now_ns = refill_ns


def entry_ns(call: Call, now_ns: int) -> int:
    """When a call would fit if nobody came or left; naive."""
    if any(slot.used >= slot.limit for slot in call.slots):
        return FOREVER_NS
    return now_ns + max(rate.wait_ns(now_ns) for rate in call.rates)
