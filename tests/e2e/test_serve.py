"""`bench serve` as a process: policies, tokens, cancel, kill -9, drain."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from serve_process import ARCHIVE, BENCH, TASK, TASKS, serving

pytestmark = pytest.mark.timeout(300)


def archive(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("shell", {"command": ARCHIVE}),))


def test_a_group_of_a_policy_is_sampled_with_tokens_and_its_own_seeds(tmp_path: Path) -> None:
    with ScriptedLlm(archive) as llm, serving(tmp_path / "s", "--agent", "policy") as server:
        server.use_policy(llm, "v1")
        rollout = {"task": TASK, "policy": "p", "seed": 5, "sampling": {"temperature": 0.5}}
        given = server.client.post("/v1/groups", json={"id": "g", "size": 2, "rollout": rollout})
        assert given.status_code == 202, given.text
        group = server.client.get("/v1/groups/g", params={"wait": 100}).json()
        assert (group["is_ended"], group["lost"]) == (True, [])
        assert group["policy_version"] == "v1"
        assert [member["reward"] for member in group["members"]] == [1.0, 1.0]
        sampled = []
        for member in group["members"]:
            result = server.client.get(f"/v1/rollouts/{member['id']}/result").json()
            [sample] = result["samples"]
            spans = [span for span in sample["spans"] if span["kind"] == "sampled"]
            assert {span["policy_version"] for span in spans} == {"v1"}
            assert {span["temperature"] for span in spans} == {0.5}
            assert all(span["token_ids"] and span["logprobs"] for span in spans)
            sampled.append(sample["sampling"]["seed"])
        assert len(set(sampled)) == 2


KILLED_IN_AN_ACKNOWLEDGEMENT = """
import os, signal
from benchflow_serve.rollouts import RolloutBoard
acknowledge = RolloutBoard.acknowledge

def kill_after(board, entry):
    acknowledge(board, entry)
    os.kill(os.getpid(), signal.SIGKILL)

RolloutBoard.acknowledge = kill_after
"""


def test_a_kill_in_an_acknowledgement_loses_no_result_and_runs_nothing_twice(
    tmp_path: Path,
) -> None:
    home = tmp_path / "s"
    with serving(home, "--slots", "1", fault=KILLED_IN_AN_ACKNOWLEDGEMENT) as server:

        def result(ident: str) -> Any:
            return server.client.get(f"/v1/rollouts/{ident}/result").json()

        ended, given = server.submit(), server.submit()
        server.wait(given)
        before, before_given = result(ended), result(given)
        running, queued = server.submit(), server.submit()
        server.wait(running, "running")
        with pytest.raises(httpx.TransportError):
            server.client.post(f"/v1/rollouts/{given}/ack")
        assert server.end() == -signal.SIGKILL
        server.fault = None
        server.start()
        assert result(ended) == before
        # The acknowledgement was recorded and not answered. It can be sent again.
        before_given["rollout"]["is_acknowledged"] = True
        assert result(given) == before_given
        assert server.client.post(f"/v1/rollouts/{given}/ack").status_code == 200
        assert server.client.get("/v1/capacity").json()["unacknowledged"] >= 1
        cut = server.wait(running)
        assert (cut["outcome"], cut["reward"]) in {("lost", None), ("scored", 1.0)}
        if cut["outcome"] == "lost":
            assert cut["error"]["retryable"]
        assert server.wait(queued)["outcome"] == "scored"
        assert server.client.get("/v1/capacity").json()["sandboxes"] == 0
        assert [server.status(each)["attempts"] for each in (ended, given, queued)] == [1, 1, 1]
        assert len(list((home / "rollouts").iterdir())) <= 5
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0


def test_a_cancel_cuts_the_model_call_and_removes_the_sandbox(tmp_path: Path) -> None:
    def slow(request: ModelRequest) -> ModelReply:
        time.sleep(5)
        return ModelReply(text="late")

    with ScriptedLlm(slow) as llm, serving(tmp_path / "s", "--agent", "policy") as server:
        server.use_policy(llm, "v1")
        ident = server.submit(policy="p")
        while not llm.requests:
            time.sleep(0.02)
        started = time.monotonic()
        ended = server.client.delete(f"/v1/rollouts/{ident}").json()
        seconds = time.monotonic() - started
        assert ended["outcome"] == "cancelled"
        assert server.client.get("/v1/capacity").json()["sandboxes"] == 0
        assert seconds < 5
        print(json.dumps({"cancel_sec": seconds}))


def test_a_parked_rollout_uses_no_sandbox_and_continues_with_new_weights(tmp_path: Path) -> None:
    with ScriptedLlm(archive) as llm, serving(tmp_path / "s", "--agent", "policy") as server:
        server.use_policy(llm, "v1")
        ident = server.submit(policy="p")
        server.wait(ident, "running")
        parked = server.client.delete(f"/v1/rollouts/{ident}", params={"keep": "checkpoint"})
        assert parked.status_code == 200, parked.text
        server.wait(ident, "parked")
        assert server.client.get("/v1/capacity").json()["sandboxes"] == 0
        server.use_policy(llm, "v2", in_flight="swap")
        body = {"policy_version": "v2"}
        assert server.client.post(f"/v1/rollouts/{ident}/resume", json=body).status_code == 202
        ended = server.wait(ident)
        assert (ended["outcome"], ended["reward"]) == ("scored", 1.0)
        assert ended["started_version"] == "v1"
        assert ended["policy_versions"] == ["v1", "v2"]
        [sample] = server.client.get(f"/v1/rollouts/{ident}/result").json()["samples"]
        assert sample["reward"] == 1.0


def test_a_bad_token_or_address_is_refused(tmp_path: Path, bench: Any) -> None:
    assert bench("serve", TASKS, "--dir", tmp_path, "--no-auth", "--host", "0.0.0.0", code=2) == ""
    with serving(tmp_path / "s") as server:
        url = str(server.client.base_url)
        assert httpx.get(f"{url}/v1/capacity").status_code == 401
        assert httpx.get(f"{url}/v1/health").status_code == 200
        other = subprocess.run(
            [str(BENCH), "serve", "--dir", str(tmp_path / "s"), "--port", "0"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 2
        assert "another process serves" in other.stderr


def test_a_rollout_with_a_checkpoint_continues_after_a_kill(tmp_path: Path) -> None:
    with ScriptedLlm(slow_after_the_question) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--keep", "all")
        with serving(tmp_path / "s", "--agent", "policy", *endpoint) as server:
            ident = server.submit(task="clawsbench/book-the-review-room")
            while len(llm.requests) < 3:
                time.sleep(0.05)
            server.kill()
            asked = len(llm.requests)
            server.start()
            ended = server.wait(ident)
            assert (ended["outcome"], ended["reward"]) == ("scored", 1.0)
            # The calls before the checkpoint are not made again.
            assert not [r for r in llm.requests[asked:] if not r.tool_results]
            assert server.client.get("/v1/capacity").json()["sandboxes"] == 0


def slow_after_the_question(request: ModelRequest) -> ModelReply:
    """Look, ask which event is meant, think, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        command = "claw-gcal list --calendar cal-1 --text review"
    elif len(seen) == 1:
        ask = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11", "evt-12"]}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    elif len(seen) == 2:
        time.sleep(1)
        chosen = next(event for event in ("evt-10", "evt-11", "evt-12") if event in seen[1])
        command = f"claw-gcal update {chosen} --add-attendee room-maple@harborlight.example"
    else:
        return ModelReply(text="Booked.")
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))
