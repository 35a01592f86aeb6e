"""The scheduler process over real links, with ranks that check every plan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from llmrt import link, topology, wire
from llmrt.engine.config import EngineConfig
from llmrt.process.descriptor import descriptor_of
from llmrt.supervisor.children import Child
from tests.support.fake_ranks import FAILS, KILLS, answer

ROOT = Path(__file__).parents[2]
EOS = {2}
VOCAB = 97
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}


class Plant:
    """A scheduler process with an entry, a detokenizer and a supervisor that only record what they are told."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None, **options: Any) -> None:
        self.table = topology.build(directory)
        self.control = link.Inbox(self.table.control)
        self.tokens = link.Inbox(self.table.detokenizer[0].tokens)
        self.config = EngineConfig(self.table, executor="tests.support.fake_ranks:build", parent=os.getpid(), **options)
        told, environment = self.config.to_json(), ENVIRONMENT | (environment or {})
        self.child = Child("scheduler", "scheduler", "llmrt.engine.process", told, environment)
        self.others: list[link.Outbox] = []
        self.detokenizer_lives = True
        self.entry = link.Outbox(self.table.scheduler.requests, link.Identity("entry"))
        self.entry_events: list[link.OutboxEvent] = []
        self.control_events: list[link.InboxEvent] = []
        self.requests: dict[int, wire.Request] = {}
        self.answers: dict[int, list[int]] = {}
        self.outcomes: dict[int, wire.Outcome] = {}

    def connect(self, role: str, index: int) -> link.Outbox:
        """One more peer of the scheduler, ready."""
        outbox = link.Outbox(self.table.scheduler.requests, link.Identity(role, index))
        self.others.append(outbox)
        self.until(lambda: outbox.ready)
        return outbox

    @property
    def links(self) -> list[Any]:
        return [self.control, self.entry, *self.others, *([self.tokens] if self.detokenizer_lives else [])]

    def restart_detokenizer(self) -> None:
        """Its requests are gone before its successor listens."""
        self.detokenizer_lives = False
        self.tokens.close("the detokenizer ends")
        self.until(lambda: self.entry._credit == self.config.credit)
        self.tokens = link.Inbox(self.table.detokenizer[0].tokens)
        self.detokenizer_lives = True

    def until(self, condition: Callable[[], Any], patience: float = 30.0) -> None:
        """Serves the links until ``condition`` holds."""
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, "the condition did not come true"
            poller = zmq.Poller()
            for each in self.links:
                each.register(poller)
            link.poll(poller, self.links, 0.05)
            self.receive()

    def receive(self) -> None:
        self.entry_events += self.entry.receive()
        self.control_events += self.control.receive()
        for other in self.others:
            other.receive()
        for event in self.tokens.receive() if self.detokenizer_lives else ():
            if isinstance(event, link.Received):
                assert isinstance(event.message, wire.TokenFrame)
                self.read(event.message)

    def read(self, frame: wire.TokenFrame) -> None:
        ids, counts, tokens = wire.u64s(frame.ids), wire.u32s(frame.counts), list(wire.u32s(frame.tokens))
        for id, count in zip(ids, counts, strict=True):
            assert id not in self.outcomes
            self.answers[id] += tokens[:count]
            del tokens[:count]
        for finished in frame.finished:
            self.outcomes[ids[finished.row]] = finished.outcome

    def request(self, id: int, prompt: list[int], **sampling: Any) -> wire.Request:
        sampling = {"seed": id, **sampling}
        request = wire.Request(id, wire.u32(prompt), wire.Sampling(**sampling), wire.Output())
        self.requests[id] = request
        self.answers.setdefault(id, [])
        return request

    def submit(self, id: int, prompt: list[int], **sampling: Any) -> None:
        self.until(lambda: self.entry.ready)
        self.entry.send(wire.Submit([self.request(id, prompt, **sampling)]))

    def check(self, id: int) -> None:
        """Waits for the request's end and compares its answer."""
        self.until(lambda: id in self.outcomes)
        assert self.outcomes[id].reason in (wire.STOP, wire.LENGTH), self.outcomes[id]
        assert self.answers[id] == answer(self.requests[id], EOS, VOCAB, 4096)

    def call(self, method: str) -> wire.Reply:
        self.entry_events.clear()
        self.entry.send(wire.Call(7, method, "{}"))

        def replies() -> list[wire.Reply]:
            messages = [event.message for event in self.entry_events if isinstance(event, link.Received)]
            return [message for message in messages if isinstance(message, wire.Reply)]

        self.until(replies)
        (reply,) = replies()
        assert reply.call == 7
        return reply

    def stats(self) -> dict[str, float]:
        return json.loads(self.call("stats").value)

    def end_code(self) -> int:
        self.until(lambda: self.child.ended() is not None)
        return self.child.process.returncode

    def close(self) -> None:
        if self.child.ended() is None:
            self.child.tell_to_end()
            assert self.end_code() == 0
        for each in self.links:
            each.close("the test ends")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with topology.RuntimeDirectory() as made:
        yield made.path


@pytest.fixture
def make(directory: Path) -> Iterator[Callable[..., Plant]]:
    plants: list[Plant] = []

    def build(**options: Any) -> Plant:
        plants.append(Plant(directory, **options))
        return plants[-1]

    yield build
    for plant in plants:
        plant.close()


def test_requests_are_answered_and_the_core_describes_itself(make: Callable[..., Plant]) -> None:
    plant = make(max_num_seqs=4, max_num_queued_reqs=10, max_num_batched_tokens=32)
    for id in range(1, 9):
        plant.submit(id, [id, 5, 6] * id, max_tokens=20, ignore_eos=bool(id % 2))
    for id in range(1, 9):
        plant.check(id)
    (up,) = [event for event in plant.entry_events if isinstance(event, link.Up)]
    description = json.loads(up.info)
    assert (description["max_model_len"], description["vocab_size"]) == (4096, VOCAB)
    joined = [event.hello for event in plant.control_events if isinstance(event, link.Joined)]
    assert [(hello.role, hello.incarnation) for hello in joined] == [("scheduler", up.incarnation)]
    stats = plant.stats()
    assert stats["num_requests_running"] == stats["num_requests_waiting"] == stats["kv_cache_usage_perc"] == 0
    assert stats["generation_tokens_total"] == sum(map(len, plant.answers.values()))
    flushed = plant.call("flush_cache")
    assert flushed.ok and json.loads(flushed.value)["evicted_pages"] > 0
    unknown = plant.call("reboot")
    assert not unknown.ok and "has no method 'reboot'" in unknown.value


def test_credit_comes_back_as_requests_end(make: Callable[..., Plant]) -> None:
    plant = make(max_num_seqs=2, max_num_queued_reqs=1)
    plant.submit(1, [1], max_tokens=4000, ignore_eos=True)
    plant.submit(2, [2], max_tokens=4000, ignore_eos=True)
    plant.submit(3, [VOCAB + 5])
    with pytest.raises(link.Full):
        plant.entry.send(wire.Submit([plant.request(4, [4])]))
    plant.until(lambda: 3 in plant.outcomes)
    assert plant.outcomes[3].status == 400
    plant.until(lambda: plant.entry._credit == 1)
    plant.entry.send(wire.Abort([1, 2]))
    plant.until(lambda: plant.entry._credit == 3)
    plant.until(lambda: {1, 2} <= plant.outcomes.keys())
    assert plant.outcomes[1] == plant.outcomes[2] == wire.Outcome(wire.ABORT)


def test_a_request_submitted_twice_costs_one_credit(make: Callable[..., Plant]) -> None:
    plant = make(max_num_seqs=2, max_num_queued_reqs=2)
    plant.submit(1, [1], max_tokens=400, ignore_eos=True)
    plant.entry.send(wire.Submit([plant.requests[1]]))
    plant.check(1)
    plant.until(lambda: plant.entry._credit == 4)


def test_an_entry_that_leaves_takes_its_requests_along_and_no_others(make: Callable[..., Plant]) -> None:
    plant = make()
    other = plant.connect("entry", 1)
    other.send(wire.Submit([plant.request(10, [3, 4], max_tokens=4000, ignore_eos=True)]))
    plant.submit(11, [4, 5], max_tokens=600, ignore_eos=True)
    plant.until(lambda: plant.answers[10] and plant.answers[11])
    # Nobody aborts a request of somebody else.
    plant.entry.send(wire.Abort([10]))
    seen = len(plant.answers[10])
    plant.until(lambda: len(plant.answers[10]) > seen + 5)
    plant.others.remove(other)
    other.close("the worker ends")
    plant.until(lambda: 10 in plant.outcomes)
    assert plant.outcomes[10] == wire.Outcome(wire.ABORT)
    plant.check(11)


def test_a_stop_string_found_by_the_detokenizer(make: Callable[..., Plant]) -> None:
    plant = make()
    plant.submit(1, [3, 4], max_tokens=4000, ignore_eos=True)
    plant.until(lambda: plant.answers[1])
    plant.connect("detokenizer", 0).send(wire.Ended([1, 999]))
    plant.until(lambda: 1 in plant.outcomes)
    assert plant.outcomes[1] == wire.Outcome(wire.STOP)


def test_a_failed_step_is_an_error_and_the_engine_goes_on(make: Callable[..., Plant]) -> None:
    plant = make(max_num_seqs=1)
    plant.submit(1, [FAILS, 1], max_tokens=5)
    plant.submit(2, [4, 5], max_tokens=5)
    plant.check(2)
    outcome = plant.outcomes[1]
    assert (outcome.reason, outcome.status) == (wire.ERROR, 500) and "as they were told" not in outcome.message


def test_an_executor_beyond_repair_ends_the_process_with_a_notice(make: Callable[..., Plant]) -> None:
    plant = make(environment={"LLMRT_TEST_NO_END": "1"})
    plant.submit(1, [KILLS], max_tokens=5)
    assert plant.end_code() == 1
    plant.until(lambda: any(isinstance(event, link.Left) for event in plant.control_events))
    (left,) = [event for event in plant.control_events if isinstance(event, link.Left)]
    assert left.reason == "the executor cannot go on after a failed step"


def test_the_end_comes_with_a_notice(make: Callable[..., Plant]) -> None:
    plant = make()
    plant.submit(1, [1], max_tokens=4000, ignore_eos=True)
    plant.until(lambda: plant.answers[1])
    plant.child.tell_to_end()
    assert plant.end_code() == 0
    plant.until(lambda: any(isinstance(event, link.Left) for event in plant.control_events))
    (left,) = [event for event in plant.control_events if isinstance(event, link.Left)]
    assert left.reason == "the server ends"


def test_nobody_is_welcome_before_the_model_is_loaded(make: Callable[..., Plant], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plant = make(environment={"LLMRT_TEST_GATE": str(gate)})
    plant.until(Path(f"{gate}.loading").exists)
    connected = time.monotonic()
    plant.until(lambda: time.monotonic() > connected + 0.3)
    assert not plant.entry.ready and not plant.control_events
    gate.touch()
    plant.submit(1, [1, 2], max_tokens=5)
    plant.check(1)


def test_a_lost_detokenizer_ends_what_is_open_and_its_successor_serves(make: Callable[..., Plant]) -> None:
    plant = make()
    plant.submit(1, [1], max_tokens=4000, ignore_eos=True)
    plant.until(lambda: plant.answers[1])
    plant.restart_detokenizer()
    plant.submit(2, [4, 5], max_tokens=5)
    plant.check(2)
    assert (plant.outcomes[1].reason, plant.outcomes[1].status) == (wire.ERROR, 503)
    assert plant.stats()["requests_error_total"] == 1


def test_an_idle_engine_uses_no_processor(make: Callable[..., Plant]) -> None:
    plant = make()
    plant.submit(1, [1, 2], max_tokens=5)
    plant.check(1)

    def used() -> float:
        fields = Path(f"/proc/{plant.child.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = used(), time.monotonic()
    plant.until(lambda: time.monotonic() > began + 1.5)
    assert used() - before < 0.1


CHILD_OF_A_VICTIM = """
import os, sys, time
from llmrt.supervisor.children import Child
child = Child("scheduler", "scheduler", "llmrt.engine.process", sys.argv[1].encode())
print(child.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent's death is signalled by Linux")
def test_the_process_dies_with_its_parent(directory: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = EngineConfig(topology.build(directory), executor="tests.support.fake_ranks:build")
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD_OF_A_VICTIM, config.to_json().decode()],
        env=os.environ | ENVIRONMENT | {"LLMRT_TEST_GATE": str(gate)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    def alive() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    end = time.monotonic() + 30
    while not Path(f"{gate}.loading").exists():
        assert alive() and time.monotonic() < end
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    while alive():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_child_of_nobody_ends_at_once() -> None:
    config = EngineConfig(topology.build(Path("/tmp")), parent=1 << 22)
    descriptor = descriptor_of(config.to_json())
    done = subprocess.run(
        [sys.executable, "-m", "llmrt.engine.process", str(descriptor)],
        pass_fds=[descriptor],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(descriptor)
    assert done.returncode == 1 and "the parent process is gone" in done.stderr


def test_the_process_says_how_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmrt.engine.process", "model.gguf"],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "is started by llmrt itself" in done.stderr
