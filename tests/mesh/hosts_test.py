"""What processes agree on, and when one of them is lost: threads in place of processes."""

import threading
from typing import Any

import numpy as np
import pytest
from host_threads import Texts, together

from dsinfer_jax.mesh.host_watch import HostWatch
from dsinfer_jax.mesh.hosts import Hosts


def parts(**arrays: list[int]) -> list[tuple[str, np.ndarray]]:
    return [(name, np.array(values, np.int32)) for name, values in arrays.items()]


def test_seeds_are_fresh_and_the_same_everywhere() -> None:
    def seeds(hosts: Hosts) -> list[int]:
        return [hosts.fresh_seed() for _ in range(4)]

    found, again = together(3, seeds), together(3, seeds)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0]) | set(again[0])) == 8
    assert all(0 <= seed < 2**64 for seed in found[0])


def test_texts_are_gathered_in_order_and_forgotten() -> None:
    def work(hosts: Hosts) -> Any:
        found = [hosts.gather("here", f"{hosts.process}.{time}") for time in range(20)]
        return found, len(hosts._store.texts)  # type: ignore[attr-defined]

    for found, kept in together(3, work):
        assert found == [[f"{process}.{time}" for process in range(3)] for time in range(20)]
        assert kept < 15  # the last meetings and the signs of life


def test_the_fact_that_differs_is_named() -> None:
    def work(hosts: Hosts) -> None:
        hosts.agree("the start", {"slots": "8", "dp": "2" if hosts.process < 2 else "4"})

    sentence = "the processes differ at the start: dp is 2 in process 0 and 4 in process 2; all of"
    found = together(3, work)
    assert len(set(found)) == 1
    assert found[0].startswith(sentence)


def test_a_long_fact_is_cut_and_told_apart() -> None:
    def work(hosts: Hosts) -> None:
        hosts.agree("the prompts", {"prompt 0": "x" * 100 + str(hosts.process)})

    found = together(2, work)[0]
    assert found.count("x" * 40 + "... (digest ") == 2
    assert len(found) < 300


@pytest.mark.parametrize("check", [False, True])
def test_the_first_step_that_differs_is_named(check: bool) -> None:
    def work(hosts: Hosts) -> int:
        for step in range(1, 6):
            wrong = hosts.process == 1 and step >= 4
            hosts.check_step("decode 8 x 1", parts(tokens=[step], places=[1, int(wrong)]))
        return step

    found = together(2, work, check_digests=check)
    if not check:
        assert found == [5, 5]
        return
    assert found[0] == found[1]
    assert "differ at step 4: places is " in found[0]


def test_another_program_is_named_before_what_it_is_given() -> None:
    def work(hosts: Hosts) -> None:
        hosts.check_step("prefill 256" if hosts.process else "decode 8 x 1", parts(a=[1]))

    assert (
        "at step 1: the program is decode 8 x 1 in process 0 and prefill 256 in process 1"
        in together(2, work)[1]
    )


def test_a_process_that_ends_early_is_told() -> None:
    def work(hosts: Hosts) -> None:
        hosts.check_step("decode 8 x 1", parts(a=[1]))
        if hosts.process == 1:
            hosts.leave()
        hosts.check_step("decode 8 x 1", parts(a=[1]))

    found = together(2, work, check_digests=True)
    assert found[0] == "the processes differ: process 0 is at step 2, and process 1 at the end"


def test_a_step_that_fails_is_said_to_be_that_of_a_lost_process() -> None:
    def work(hosts: Hosts) -> None:
        with hosts.waiting("a step"):
            raise RuntimeError("connection reset by peer\nand a trace")

    assert together(1, work) == [
        "a step failed, as it does when another process is lost: connection reset by peer"
    ]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def watches(count: int, texts: Texts, clock: Clock) -> list[HostWatch]:
    """Watches whose threads do not run."""
    return [
        HostWatch(texts, process, count, 10.0, lambda sentence: None, clock)
        for process in range(count)
    ]


def test_a_silent_process_is_lost_after_the_limit() -> None:
    texts, clock = Texts(), Clock()
    first, second, third = watches(3, texts, clock)
    for _ in range(6):
        clock.now += 3
        second.beat()
        first.beat()
    assert first.complaint() == (
        "process 2 has given no sign of life for 10 s; it has died, is stopped, or cannot be "
        "reached"
    )
    third.beat()
    first.beat()
    assert first.complaint() is None
    clock.now += 9
    assert first.complaint() is None


def test_a_silent_coordinator_is_lost_after_the_limit() -> None:
    texts, clock = Texts(), Clock()
    second = watches(2, texts, clock)[1]
    second.beat()
    texts.answers = False
    clock.now += 9
    second.beat()
    assert second.complaint() is None
    clock.now += 2
    second.beat()
    assert second.complaint() == "process 0, the coordinator, has not answered for 10 s"


def test_a_step_that_takes_too_long_is_told() -> None:
    texts, clock = Texts(), Clock()
    first, second = watches(2, texts, clock)
    with first.limited("a step"):
        clock.now += 11
        second.beat()
        first.beat()
        complaint = first.complaint()
    assert complaint is not None
    assert complaint.startswith("a step has not ended after 10 s, though every process is alive")
    assert first.complaint() is None


def test_last_words_are_passed_on() -> None:
    texts, clock = Texts(), Clock()
    first, second = watches(2, texts, clock)
    second.last_words("the disk is full")
    first.beat()
    assert first.complaint() == "process 1 has stopped: the disk is full"


def test_last_words_give_up_without_a_coordinator() -> None:
    texts = Texts()
    texts.answers = False
    watches(2, texts, Clock())[1].last_words("the disk is full")  # returns


def test_the_threads_tell_a_loss_once() -> None:
    texts, said, told = Texts(), [], threading.Event()

    def lost(sentence: str) -> None:
        said.append(sentence)
        told.set()

    watch = HostWatch(texts, 0, 2, 0.3, lost)
    watch.start()
    assert told.wait(60)
    assert said[0].startswith("process 1 has given no sign of life for 0.3 s")
    assert len(said) == 1
