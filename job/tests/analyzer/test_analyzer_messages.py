"""The analyzer on hangs in sends and receives: whom a message waits for, and who waits for whom in a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import everything, last, only, told
from job.tests.support.observations import WORLD, edge, member, observed, rank
from job.tests.support.observed_jobs import every_rank, hung, in_call
from tensorwire_job.analyzer.view.groups import Groups
from tensorwire_job.analyzer.view.histories import CallHistories
from tensorwire_job.columns import RankColumns
from tensorwire_job.model import Call, Operation

if TYPE_CHECKING:
    from tensorwire_job.model import ProcessGroup


class TestSendAndReceive:
    """Counts of sends differ between ranks by right: waits are pairwise."""

    def chain(self, culprit: int) -> Any:
        """A pipeline: each stage receives from the one before it; the culprit is in no operation."""

        def groups(number: int, age: float) -> list[ProcessGroup]:
            entered = 10 * (number + 1)
            if number == culprit:
                return [member(entered, name="send", root=number + 1)]
            source = (number - 1) % WORLD
            return [member(entered, waits=age, name="recv", root=source)]

        return groups

    @every_rank
    def test_a_chain_of_receives_leads_to_who_does_not_send(self, culprit: int) -> None:
        assert told(last(hung(self.chain(culprit))), "victims", "circle") == ("TW-H1", [culprit], 3, [])

    def test_all_receive_in_a_circle(self) -> None:
        finding = only(last(hung(self.chain(culprit=-1))))
        assert finding.code == "TW-H2"
        start = [link.rank for link in finding.circle].index(0)
        told = [(link.rank, link.waits_in) for link in (*finding.circle[start:], *finding.circle[:start])]
        assert told == [(n, f"recv from rank {(n - 1) % WORLD} of world") for n in (0, 3, 2, 1)]

    def test_two_circles_are_two_findings(self) -> None:
        peers = [1, 0, 3, 2]
        found = last(hung(lambda number, age: [member(31, waits=age, name="recv", root=peers[number])]))
        assert [(finding.code, finding.suspects, finding.victims) for finding in found] == [("TW-H2", [], 2)] * 2
        assert sorted(sorted(finding.sides) for finding in found) == [[[0], [1]], [[2], [3]]]

    def test_who_is_on_all_circles_is_named(self) -> None:
        """0 and 1 lack each other, and so do 0 and 2; 3 waits for 0."""

        def groups(number: int, age: float) -> list[ProcessGroup]:
            if number == 0:
                return [member(31, waits=age, group="pair", size=3)]
            return [
                member(31, waits=age, name="recv", root=0),
                *([member(30, group="pair", size=3)] if number < 3 else []),
            ]

        assert told(last(hung(groups)), "victims") == ("TW-H2", [0], 3)

    @pytest.mark.parametrize("numel", [1024, 2048], ids=["the same", "the one before is not received yet"])
    def test_both_ends_are_there(self, numel: int) -> None:
        def groups(number: int, age: float) -> list[ProcessGroup]:
            if number > 1:
                return [member(5)]
            if number == 1:
                return [member(5, waits=age, name="recv", root=0)]
            return [member(5, waits=age, name="send", root=1, numel=numel)]

        def edges(time: float) -> list[Any]:
            return [edge(0, 1, backoff=3, send_queue=100), edge(1, 0)]

        assert told(last(hung(groups, edges=edges))) == ("TW-H3", [0])

    @pytest.mark.parametrize("tag", [False, True])
    def test_both_ends_are_there_and_do_not_fit(self, tag: bool) -> None:
        """As with a tag, which only the signatures tell, or a size. Numbers of messages count apart at either end."""

        def groups(number: int, age: float) -> list[ProcessGroup]:
            if number > 1:
                return [member(5)]
            name = "send" if number == 0 else "recv"
            pair = member(5 + number, waits=age, name=name, root=1 - number, numel=64 if number or tag else 32)
            assert pair.operation is not None
            pair.operation.signature += number * tag
            return [pair]

        assert told(last(hung(groups)), "sides") == ("TW-H2", [], [[0], [1]])

    def beside_a_collective(self, culprit: int, *, waits: bool = True) -> Any:
        """As a passive probe has it: the culprit has not sent, its peer waits in the slot of the pair, and the others
        wait for the two in the world's next all-reduce."""

        def groups(number: int, age: float) -> list[ProcessGroup]:
            if number == culprit:
                return [member(30)]
            if number == (culprit + 1) % WORLD:
                pair = {"group": "pair", "size": 2, "name": "recv", "root": culprit}
                return [member(30), member(1, waits=age - 1 if waits and age > 1 else None, **pair)]
            return [member(31, waits=age)]

        return groups

    @every_rank
    def test_who_does_not_send_is_to_blame_and_its_receiver_a_victim(self, culprit: int) -> None:
        findings = everything(hung(self.beside_a_collective(culprit)), 30)
        assert {(finding.code, *finding.suspects) for finding in findings} == {("TW-H1", culprit)}
        assert findings[-1].summary == f"rank {culprit} has not entered all_reduce #31 of world; 3 ranks wait for it"
        receiver = (culprit + 1) % WORLD
        assert any(f"rank {receiver} waits in recv" in fact for fact in findings[-1].evidence)

    def test_whose_waits_for_messages_are_not_seen_is_suspected_too(self) -> None:
        assert only(last(hung(self.beside_a_collective(2, waits=False)))).suspects == [2, 3]

    @every_rank
    @pytest.mark.parametrize("call", ["send", "recv"])
    def test_only_one_end_of_a_message_is_anywhere(self, culprit: int, call: str) -> None:
        """No collective is open, and the culprit has no slot of the pair."""
        waiting = (culprit + 2) % WORLD

        def groups(number: int, age: float) -> list[ProcessGroup]:
            pair = [member(1, waits=age, group="pair", size=2, name=call, root=culprit)] if number == waiting else []
            return [member(30), *pair]

        finding = only(last(hung(groups)))
        assert (finding.code, finding.suspects, finding.victims) == ("TW-H1", [culprit], 1)
        assert not any("not in view" in fact for fact in finding.evidence)
        assert finding.confidence == "medium", "it may wait for a message that it asked for with irecv"
        way = "to" if call == "send" else "from"
        assert finding.summary == (
            f"rank {culprit} has not entered its end of {call} {way} rank {culprit} of pair; 1 rank waits for it"
        )

    def test_who_went_on_without_sending_is_in_a_circle_with_its_receiver(self) -> None:
        def groups(number: int, age: float) -> list[ProcessGroup]:
            if number == 1:
                return [member(30), member(1, waits=age, group="pair", size=2, name="recv", root=0)]
            return [member(31, waits=age)]

        finding = only(last(hung(groups)))
        assert (finding.code, finding.suspects) == ("TW-H2", [])
        assert "recv from rank 0 of pair" in finding.summary
        assert [0] in finding.sides
        assert [1] in finding.sides

    def test_a_peer_out_of_view_is_not_accused(self) -> None:
        def at(time: float) -> Any:
            waiting = member(1, waits=time, group="pair", size=2, name="recv", root=3)
            return observed(time, [rank(n, member(30), *([waiting] if n == 0 else [])) for n in range(3)])

        assert told(last(at)) == ("TW-UNKNOWN", [3])


def sends_to_another(culprit: int) -> Any:
    """Ranks send to the next one, and then reduce; the culprit sends to the one after that."""
    wronged, after = (culprit + 1) % WORLD, (culprit + 2) % WORLD

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if number == culprit:
            return [member(70), member(1, waits=age, group="to", size=2, name="send", root=after)]
        if number == wronged:
            return [member(70), member(1, waits=age, group="from", size=2, name="recv", root=culprit)]
        return [member(71, waits=age)]

    return hung(groups)


@every_rank
def test_who_sends_to_another_than_the_one_that_waits_for_it(culprit: int) -> None:
    finding = only(last(sends_to_another(culprit)))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit], "medium")
    assert any("no rank is at the other end of its message" in fact for fact in finding.evidence)


@every_rank
def test_who_waits_for_a_send_as_well_tells_nothing_of_one_that_sends(culprit: int) -> None:
    """Both want to give: the other rank may have left out a receive."""
    seen_at, wronged = sends_to_another(culprit), (culprit + 1) % WORLD

    def at(time: float) -> Any:
        seen = seen_at(time)
        for group in seen.ranks[wronged].process_groups:
            if group.operation is not None and group.operation.name == "recv":
                group.operation.name = "send"
        return seen

    finding = only(last(at))
    assert (finding.code, finding.suspects, len(finding.sides)) == ("TW-H2", [], 2)


@pytest.mark.parametrize("state", ["S", "T"])
def test_who_does_nothing_while_the_only_other_rank_waits_for_a_message_from_any(state: str) -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(30, idle=age, size=2)]

    at = in_call("recv from any source", [0], groups, world=2, states={1: {"state": state}})
    assert told(last(at)) == ("TW-H1", [1])


def test_two_faults_that_each_leave_a_circle_are_told_as_sides() -> None:
    """As above; and rank 6 has entered an operation of ranks 2 to 6 first, while these four reduce."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        others = member(70, size=7)
        if number == 0:
            return [others, member(1, waits=age, group="to", size=2, name="send", root=2)]
        if number == 1:
            return [others, member(1, waits=age, group="from", size=2, name="recv", root=0)]
        if number == 6:
            return [others, member(31, waits=age, group="upper", size=5)]
        return [member(71, waits=age, size=7), member(30, group="upper", size=5)]

    finding = only(last(hung(groups, world=7)))
    assert (finding.code, finding.suspects) == ("TW-H2", [])
    assert [6] in finding.sides


def test_a_line_of_messages_that_makes_a_new_one_is_accused_of_nothing() -> None:
    """Its tag may be new each time, and the other end may have counted one message more."""

    def call(name: str, number: int, peer: int, tag: int) -> Call:
        return Call("0-1", Operation(number, name, "float32", 8, peer, signature=tag), line=7)

    sends = [call("send", number, 1, tag) for number, tag in ((29, 5), (30, 5), (31, 6))]
    calls = {0: sends, 1: [call("recv", 31, 0, 5)]}
    columns = RankColumns.of({number: rank(number, member(31), calls=own) for number, own in calls.items()})
    (difference,) = CallHistories().differences(columns, Groups(columns, 2))
    assert (difference.sides, difference.accused) == (((0,), (1,)), ())
