"""Generated standstills: the simulator does what gloo does, and the analyzer names who is to blame."""

from __future__ import annotations

import ast
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from job.benchmarks import standstills
from job.benchmarks.standstills import chooser, faults, measure, page, programs, real, score, scripts, standstill
from job.benchmarks.standstills.caught import catch
from job.benchmarks.standstills.play import Player
from job.benchmarks.standstills.programs import Call, Program
from job.benchmarks.standstills.replay import explanations
from job.benchmarks.standstills.shrink import shrink

SLEEP = [Call("sleep")]


def play(*calls, groups=()):
    """Ranks with these calls, all past their set-up."""
    world = tuple(range(len(calls)))
    own = tuple((Call("init"), *each) for each in calls)
    player = Player(Program((("default_pg", world), *groups), own), random.Random(0))
    player.play()
    return player


def waiting(player):
    return [rank for rank, state in enumerate(player.ranks) if state.is_alive and state.waits_for is not None]


def through(player):
    return [rank for rank, state in enumerate(player.ranks) if state.is_done]


def aborted(player):
    return [rank for rank, state in enumerate(player.ranks) if state.end and "SIGABRT" in state.end.words]


# What gloo was seen to do, with torch 2.13.


def test_a_send_waits_for_the_receive():
    assert waiting(play([Call("send", peer=1, numel=4)], SLEEP)) == [0]


@pytest.mark.parametrize(("absent", "leaves"), [(1, [2]), (2, [1, 3]), (3, [0, 2])])
def test_ranks_leave_a_broadcast_down_its_tree(absent, leaves):
    calls = [[Call("broadcast", root=0, numel=4)] for _ in range(4)]
    calls[absent] = SLEEP
    assert through(play(*calls)) == leaves


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "barrier", "all_gather_into_tensor"])
def test_nobody_leaves_these_before_all_have_come(name):
    call = Call(name, root=0 if name == "reduce" else -1, numel=4)
    assert waiting(play([call], [call], SLEEP)) == [0, 1]


@pytest.mark.parametrize(("name", "absent", "leaves"), [("gather", 2, [1]), ("scatter", 2, [1]), ("gather", 0, [])])
def test_ranks_wait_for_the_root_alone(name, absent, leaves):
    calls = [[Call(name, root=0, numel=4)] for _ in range(3)]
    calls[absent] = SLEEP
    assert through(play(*calls)) == leaves


def test_a_file_lock_has_one_holder_and_goes_to_the_next_with_its_end():
    lock, unlock = Call("lock", key="a"), Call("unlock", key="a")
    assert waiting(play([lock, *SLEEP], [lock, unlock], [lock, unlock])) in ([1, 2], [])
    assert waiting(play([lock, lock])) == [0]
    assert through(play(*([lock, unlock],) * 3)) == [0, 1, 2]
    assert not waiting(play([lock, Call("die", key="SIGKILL")], [lock, unlock]))
    seize = Call("seize", key="a")
    assert waiting(play([seize, lock], [lock, unlock])) in ([0, 1], [0])


def test_who_keeps_a_file_lock_explains_the_standstill_and_not_who_waits_for_it():
    lock, unlock, barrier = Call("lock", key="a"), Call("unlock", key="a"), Call("barrier")
    player = play([lock, barrier, unlock], *([barrier, lock, unlock],) * 2)
    assert through(player) == [0, 1, 2]
    after = [Call("sleep"), lock, unlock, barrier]
    player = play([lock, barrier, unlock], *([Call("recv", peer=0, numel=1), *after[1:]],) * 2)
    assert waiting(player) == [0, 1, 2]
    player = play([lock, Call("send", peer=1, numel=1), Call("send", peer=2, numel=1), barrier, unlock],
                  *([Call("recv", peer=0, numel=1), *after[1:]],) * 2)  # fmt: skip
    assert explanations(player) == [0]


def judged(kind, seeds):
    """What is said of the plain standstills of a kind: the outcome and the confidence of each."""
    said = []
    for found in (standstill.make(seed, (kind,)) for seed in range(seeds)):
        if not (found.is_over or found.noise_kind or found.num_faults > 1):
            told = score.judge(found.player)
            said.append((told.outcome(found.fault.culprits), told.confidence))
    return said


@pytest.mark.parametrize(
    "kind",
    [
        "spin", "slipped into a lock", "lock held elsewhere", "groups in another order", "named by others",
        "unlike a reference",
    ],
)  # fmt: skip
def test_who_is_told_by_what_ranks_hold_made_or_say_is_found(kind):
    """With fresh pages and one fault the culprit is named, or a side; dead as alive."""
    counts = Counter(outcome for outcome, _ in judged(kind, 20))
    assert counts[score.WRONG] == 0, counts
    assert counts[score.RIGHT] >= 0.5 * counts.total(), counts
    assert counts[score.NOTHING] <= 0.1 * counts.total(), counts


@pytest.mark.parametrize("kind", ["a group of other members", "stuck before polling"])
def test_what_pages_tell_in_part_names_no_other(kind):
    counts = Counter(outcome for outcome, _ in judged(kind, 16))
    assert counts[score.WRONG] == 0, counts
    assert counts[score.RIGHT] + counts[score.OPEN] >= 0.4 * counts.total(), counts


@pytest.mark.parametrize("kind", ["race of threads", "groups of their own"])
def test_where_no_rank_is_to_blame_none_is_named(kind):
    assert {outcome for outcome, _ in judged(kind, 16)} == {score.RIGHT}


@pytest.mark.parametrize("kind", ["words that name none", "one speaks for another", "failed alike"])
def test_words_that_tell_nothing_of_the_culprit_give_no_high_confidence(kind):
    said = judged(kind, 16)
    assert said
    assert "high" not in {confidence for _, confidence in said}


def test_a_counter_of_the_store_is_full_once_all_have_added_and_who_has_not_explains_the_standstill():
    rendezvous = [Call("store_add", key="a"), Call("store_poll", key="a")]
    assert through(play(*[rendezvous] * 3)) == [0, 1, 2]
    player = play(rendezvous, [Call("sleep"), *rendezvous], rendezvous)
    assert waiting(player) == [0, 2]
    assert explanations(player) == [1]
    player.signal(0, "SIGINT")
    assert player.ranks[0].end is not None, "a handler of a signal ends a loop of Python's"


# Each rank makes one group: what was seen of gloo where the lists differ.


def making(*lists, seed=0):
    """Each then reduces in its group. The lists are those of one call of new_group."""
    groups = tuple(("g", members) for members in dict.fromkeys(lists))
    own = tuple(
        (Call("init"), Call("new_group", group=1 + groups.index(("g", members))),
         Call("all_reduce", group=1 + groups.index(("g", members)), numel=64))
        for members in lists
    )  # fmt: skip
    player = Player(Program((("default_pg", tuple(range(len(lists)))), *groups), own), random.Random(seed))
    player.play()
    return [None if state.end and state.end.words == "exit 0" else act.call.name if (act := state.waits_for) else "end"
            for state in player.ranks]  # fmt: skip


def test_ranks_that_have_one_list_make_their_group():
    assert making((0, 1, 2), (0, 1, 2), (0, 1, 2)) == [None] * 3


def test_who_is_missing_at_its_place_keeps_the_others_in_the_making():
    four = (0, 1, 2, 3)
    assert making(four, (1,), four, four)[1] != "new_group", "alone it is through"
    assert {making(four, (1,), four, four, seed=seed)[2] for seed in range(4)} == {"new_group"}


def test_a_place_that_two_have_leaves_one_of_them_behind():
    """Halves that make one group each have one name for both."""
    stands = [making((0, 1), (0, 1), (2, 3), (2, 3), seed=seed) for seed in range(30)]
    assert any(stand.count(None) == 2 for stand in stands)
    assert all({"new_group", "all_reduce"} & set(stand) for stand in stands)


def test_who_lacks_a_member_is_through_and_that_one_may_not_be():
    four = (0, 1, 2, 3)
    stands = [making(four, (0, 1, 2), four, four, seed=seed) for seed in range(12)]
    assert {stand[3] for stand in stands} == {"new_group", "all_reduce"}


@pytest.mark.parametrize(("sizes", "victim"), [((100, 200, 100), 0), ((100, 50, 100), 1), ((100, 50), 1)])
def test_a_rank_that_is_sent_too_much_is_aborted(sizes, victim):
    assert aborted(play(*([Call("all_reduce", numel=size)] for size in sizes))) == [victim]


def test_a_split_that_is_too_large_aborts_the_receiver_and_one_that_is_too_small_nobody():
    even = Call("all_to_all", numel=6, counts=(2, 2, 2, 2, 2, 2))
    large, small = Call("all_to_all", numel=7, counts=(2, 2, 3, 2, 2, 2)), Call("all_to_all", counts=(2, 2, 1, 2, 2, 2))
    assert aborted(play([even], [large], [even])) == [2]
    assert through(play([even], [small], [even])) == [0, 1, 2]


def test_operations_of_other_names_never_meet():
    barrier, other = [Call("barrier")], [Call("all_reduce", numel=4)]
    assert waiting(play(barrier, other, barrier)) == [0, 1, 2]


def test_an_end_is_noticed_by_who_waits_for_that_rank():
    die = [Call("die", key="SIGKILL")]
    player = play([Call("recv", peer=1, numel=4)], SLEEP, [Call("all_reduce", numel=4)], die)
    assert waiting(player) == [0]
    assert "peer" in player.ranks[2].end.words


def test_a_rank_of_a_ring_that_cannot_send_does_not_notice_who_fails_behind_it():
    reduce = [Call("all_reduce", numel=4)]
    player = play(reduce, reduce, [Call("die", key="SIGKILL")], [Call("recv", peer=0, numel=4)])
    assert waiting(player) == [0, 3]
    assert not player.ranks[1].is_alive


# Programs and faults.


@pytest.mark.parametrize("seed", range(60))
def test_a_program_without_a_fault_comes_through(seed):
    player = Player(programs.make(seed), random.Random(seed))
    player.play()
    assert standstill.is_over(player)


def test_a_seed_gives_the_same_standstill_every_time():
    one, other = standstill.make(7), standstill.make(7)
    assert one.program == other.program
    assert score.judge(one.player, one.noise) == score.judge(other.player, other.noise)


@pytest.mark.parametrize("kind", faults.KINDS)
def test_every_kind_of_fault_befalls(kind):
    found = [standstill.make(seed, (kind,)) for seed in range(12)]
    assert all(each.fault.kind == kind for each in found)
    assert sum(not each.is_over for each in found) >= 3
    blamed = {each.fault.place != "nobody" for each in found}
    of_none = ("signal to all", "race of threads", "groups of their own", "failed alike")
    assert blamed == {"lock held elsewhere": {True, False}}.get(kind, {kind not in of_none})


def test_either_end_would_explain_what_a_message_lacks_and_one_rank_that_it_sleeps():
    barrier = Call("barrier")
    assert explanations(play([barrier], [barrier], SLEEP)) == [2]
    assert explanations(play([Call("send", peer=1, numel=4), barrier], [barrier], [barrier])) == [0, 1]


def test_the_one_rank_with_another_root_is_named_where_most_of_its_group_agree():
    """Ranks that have left the operation speak as those inside do."""
    found = [standstill.make(seed, ("another root",), (4, 8)) for seed in range(14)]
    of_groups = [each for each in found if each.fault.place == "group" and each.num_faults == 1]
    plain = [each for each in of_groups if not each.noise_kind and not each.is_over]
    assert len(plain) >= 5
    assert all(score.judge(each.player).named == each.fault.culprits for each in plain)


def test_a_program_is_shrunk_to_what_the_outcome_takes():
    found = next(each for seed in range(50) if not (each := standstill.make(seed, ("stop",), (4,))).is_over)
    smallest, player = shrink(found, lambda player: score.judge(player).named)
    assert score.judge(player).named == score.judge(found.player).named
    assert sum(map(len, smallest.calls)) < sum(map(len, found.program.calls))


def test_nothing_but_the_score_knows_the_analyzer():
    """What generates must not share ideas with what is measured."""
    for path in Path(standstills.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
        allowed = {"tensorwire_job.model"}
        if path.name == "score.py":
            allowed |= {"tensorwire_job.analyzer", "tensorwire_job.analyzer.verdicts"}
        assert {name for name in names if name.startswith("tensorwire")} <= allowed, path.name


# Signals that scripts catch.

_STAND_STILL = [kind for kind in faults.KINDS if kind not in standstill.ENDS]


def caught_and_not(seed, monkeypatch):
    monkeypatch.setattr(standstill, "SHARE_OF_CAUGHT", 0.0)
    one, other = standstill.make(seed, _STAND_STILL), standstill.make(seed, _STAND_STILL)
    catch(other.player, random.Random(seed))
    return one.player, other.player


@pytest.mark.parametrize("seed", range(24))
def test_a_signal_that_was_caught_changes_nothing_of_what_is_said(seed, monkeypatch):
    """Live, once no launcher waits any more, and dead. Before an early end it may be the reason for that end."""
    one, other = caught_and_not(seed, monkeypatch)
    for _ in range(2):
        said = score.judge(other)
        assert said.claim == score.judge(one).claim or (not said.code and any(state.end for state in other.ranks))
        score.end_all(one)
        score.end_all(other)


@pytest.mark.parametrize("seed", range(12))
def test_a_healthy_job_that_caught_signals_and_is_ended_later_has_no_finding(seed):
    source = random.Random(seed)
    player = Player(programs.make(seed), source, stays=True, slowness=300.0)
    player.play()
    catch(player, source, latest=player.now - 2.0)
    name = source.choice(faults.SIGNALS)
    for rank in range(len(player.ranks)):
        player.after(source.uniform(0.0, 0.04), lambda rank=rank: player.signal(rank, name))
    player.play()
    assert not score.judge(player).code


# The score.


def test_the_culprit_is_among_the_ranks_that_would_explain_a_standstill():
    found = [standstill.make(seed) for seed in range(30)]
    single = [
        each
        for each in found
        if len(each.fault.culprits) == 1 and each.fault.place not in ("words", "unseen") and not each.is_over
    ]
    assert all(each.fault.culprits[0] in explanations(each.player) for each in single)


def test_a_rank_that_is_named_is_to_blame_and_explanations_that_were_not_named_count_as_included():
    """The analyzer decides between them, and may be wrong."""
    counts = measure.tables(measure.measure_all(measure.seeds(1, 60), 1, with_replay=False))
    assert counts["right alone"] >= 0.93 * counts["named alone"]
    told = counts["plain"][score.RIGHT] + counts["plain"][score.OPEN]
    assert told <= counts["included"] <= sum(counts["plain"].values())
    assert counts["included"] >= 0.93 * sum(counts["plain"].values())


def test_a_chooser_that_knows_the_mix_is_right_in_three_of_four():
    found = chooser.outcomes(range(60), range(10_000, 10_012))
    assert found["right"] >= 0.75 * found["standstills"]


def test_the_page_has_the_distance_to_the_chooser():
    def figures(*plain: int, alone: int, right: int, included: int, at_most_two: int) -> dict[str, Any]:
        outcomes = dict(zip(measure.OUTCOMES, plain, strict=True))
        counts = {"named alone": alone, "right alone": right, "included": included, "at most two": at_most_two}
        return {"plain": outcomes, **counts}

    found = {
        **figures(6, 2, 1, 1, alone=7, right=6, included=9, at_most_two=7),
        "one culprit": figures(6, 1, 1, 0, alone=7, right=6, included=8, at_most_two=7),
        "ambiguity": {
            "group": {"runs": 6, "culprit among them": 5},
            "pair": {"runs": 2, "culprit among them": 2},
        },
    }
    lines = page.goals(found, {"standstills": 8, "right": 7, "named": 8, "right of those named": 8}).splitlines()
    assert "| a culprit among the ranks that would explain it, by replay |  | 87.5 % |  |" in lines
    text = "a culprit among the explanations of the graph, or named, or in a side"
    assert f"| {text} | 90.0 % | 100.0 % | 99.5 % |" in lines
    assert "| a culprit among those named, or in a side | 80.0 % | 87.5 % |  |" in lines
    assert "| points below the chooser: right of those named |  | 14.3 | 3 |" in lines  # 6 of 7, and 8 of 8
    assert "| points below the chooser: named |  | 12.5 | 3 |" in lines  # 7 of 8, and 8 of 8


@pytest.mark.parametrize("seed", range(20))
def test_a_script_has_the_calls_of_its_program(seed):
    found = standstill.make(seed)
    text = scripts.script(found.program, found.fault.what)
    compile(text, "script", "exec")
    assert text.count("begin(") == 1 + sum(map(len, found.program.calls))


def test_a_real_run_agrees_with_a_play_that_ends_the_same():
    found = standstill.make(3, ("stop",), (4,))
    simulated = real.play(found.program, 0)
    assert real.Comparison(found, simulated, (simulated,)).agrees
    other = (real.Stand("own", 0), *simulated[1:])
    assert not real.Comparison(found, other, (simulated,)).agrees
