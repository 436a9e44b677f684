"""The controller asks nodes for what the analyzer lacks, once."""

from __future__ import annotations

from job.tests.support.analyzed import SECONDS
from job.tests.support.observed_jobs import hung, not_entering
from tensorwire_job.service.controller import Controller


def test_a_stack_is_asked_for_once_and_again_only_where_no_answer_comes() -> None:
    at = hung(not_entering(1))
    controller = Controller(SECONDS)
    asked = [time for time in range(90) if controller.decide(at(float(time))).stacks_of]
    first = asked[0]
    assert first - 3 == SECONDS.hang_seconds
    assert asked == [first, first + 30, first + 60]
    assert set(controller.asked) == {1}
    controller.add_stack(1, "Thread 0x1")
    assert not controller.asked
    decisions = [controller.decide(at(float(time))) for time in range(90, 190)]
    assert not any(decision.stacks_of for decision in decisions)
    assert decisions[-1].findings[0].stacks == {1: "Thread 0x1"}
