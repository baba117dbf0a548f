"""A job whose model is a registered policy: updates swap, park and drop its attempts."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from serve_process import ARCHIVE, TASK, Server, serving

pytestmark = pytest.mark.timeout(300)
ROOM = "clawsbench/book-the-review-room"


def archive(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("shell", {"command": ARCHIVE}),))


def book(request: ModelRequest) -> ModelReply:
    """Look, ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        return shell("claw-gcal list --calendar cal-1 --text review")
    if len(seen) == 1:
        ask = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11", "evt-12"]}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    if len(seen) == 2:
        chosen = next(event for event in ("evt-10", "evt-11", "evt-12") if event in seen[1])
        return shell(f"claw-gcal update {chosen} --add-attendee room-maple@harborlight.example")
    return ModelReply(text="Booked.")


def shell(command: str) -> ModelReply:
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))


class Gate:
    """A model whose first answer waits until it is opened."""

    def __init__(self, answer: Callable[[ModelRequest], ModelReply]) -> None:
        self._answer = answer
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, request: ModelRequest) -> ModelReply:
        self.reached.set()
        self.opened.wait(60)
        return self._answer(request)


def submit(server: Server, task: str = TASK) -> None:
    body = {"policy": "p", "tables": {"job": {"name": "j"}, "dataset": {"include": [task]}}}
    given = server.client.post("/v1/jobs", json=body)
    assert given.status_code == 202, given.text
    assert given.json()["policy"] == "p"


def ended(server: Server) -> list[dict[str, Any]]:
    """Wait for the end of the job, and return its only slot."""
    until = time.monotonic() + 120
    while (job := server.client.get("/v1/jobs/j").json())["state"] == "running":
        assert time.monotonic() < until, job
        time.sleep(0.05)
    assert job["state"] == "completed", job
    slots: list[dict[str, Any]] = server.client.get("/v1/jobs/j/results").json()["slots"]
    return slots


def events(server: Server) -> str:
    return server.client.get("/v1/jobs/j/events").text


@pytest.mark.parametrize("in_flight", ["swap", "drop"])
def test_an_update_swaps_or_drops_an_attempt_of_a_job(tmp_path: Path, in_flight: str) -> None:
    gate = Gate(archive)
    with (
        ScriptedLlm(gate) as old,
        ScriptedLlm(archive) as new,
        serving(tmp_path / "s", "--agent", "policy") as server,
    ):
        refused = server.client.post("/v1/jobs", json={"policy": "p"})
        assert (refused.status_code, refused.json()["type"]) == (404, "NotFoundError")
        server.use_policy(old, "v1")
        tables = {"run": {"model": {"base_url": "http://127.0.0.1:9/v1"}}}
        two = server.client.post("/v1/jobs", json={"policy": "p", "tables": tables})
        assert (two.status_code, two.json()["where"]) == (400, "run.model.base_url")
        submit(server)
        assert gate.reached.wait(60)
        status = server.use_policy(new, "v2", in_flight=in_flight)
        assert status["dropped"] == ({"v1": 1} if in_flight == "drop" else {})
        assert status["swapped"] == (in_flight == "swap")
        gate.opened.set()
        [slot] = ended(server)
        assert (slot["reward"], slot["attempt"]) == (1.0, 2 if in_flight == "drop" else 1)
        stream = events(server)
        assert ('"policy_version":"v2"' in stream) == (in_flight == "swap")
        assert ("StaleWeightsError" in stream) == (in_flight == "drop")
        assert len(old.requests) == 1
        assert len(new.requests) == (1 if in_flight == "swap" else 2)
        assert server.client.get("/v1/capacity").json()["sandboxes"] == 0


def test_an_update_parks_an_attempt_which_continues_with_the_new_weights(tmp_path: Path) -> None:
    gate = Gate(book)
    with (
        ScriptedLlm(gate) as old,
        ScriptedLlm(book) as new,
        serving(tmp_path / "s", "--agent", "policy") as server,
    ):
        server.use_policy(old, "v1")
        submit(server, ROOM)
        assert gate.reached.wait(60)
        status = server.use_policy(new, "v2", in_flight="park")
        assert len(status["parked"]) == 1
        gate.opened.set()
        [slot] = ended(server)
        assert (slot["reward"], slot["attempt"]) == (1.0, 2)
        # The question is the state that was saved: the new weights see what the old ones did.
        assert len(old.requests) == 2
        assert [len(each.tool_results) for each in new.requests] == [2, 3]


def test_a_restarted_service_waits_until_the_policy_is_registered(tmp_path: Path) -> None:
    gate = Gate(archive)
    with ScriptedLlm(gate) as old, serving(tmp_path / "s", "--agent", "policy") as server:
        server.use_policy(old, "v1")
        submit(server)
        assert gate.reached.wait(60)
        server.kill()
        gate.opened.set()
        server.start()
        assert server.client.get("/v1/jobs/j").json()["state"] == "running"
        with ScriptedLlm(archive) as new:
            server.use_policy(new, "v2")
            [slot] = ended(server)
            assert slot["reward"] == 1.0
            assert new.requests
