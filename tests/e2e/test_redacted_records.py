"""What an operator gives an agent in confidence is in no file of its rollout."""

import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = 'ca/nary "q"+ähnlich=7f3b91'
KEY = "sk-operator-5d1e77c0a9"
PRINT = """
import base64, json, os, sys, urllib.parse
value = os.environ["CANARY"]
raw = value.encode()
seen = [value, base64.b64encode(b"token: " + raw + b"!").decode(), raw.hex(),
        urllib.parse.quote(value, safe=""), json.dumps(json.dumps(value)), value[::-1]]
for out in (sys.stdout, sys.stderr, open("/workspace/greeting.txt", "w")):
    print("\\n".join(seen), file=out, flush=True)
"""
TESTS = """#!/bin/sh
cat /workspace/greeting.txt
cat /workspace/greeting.txt >&2
echo "{\\"reward\\": 1.0}" > /logs/verifier/reward.json
"""


def forms(secret: str) -> Iterator[bytes]:
    """Yield what a reader would know the secret by, each long enough to be no accident."""
    raw = secret.encode()
    yield from (raw, raw[::-1], raw.hex().encode(), quote(secret, safe="").encode())
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1].encode()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        yield encoded[4 : 4 * ((len(raw) + shift) // 3)]


def spill(request: ModelRequest) -> ModelReply:
    """Print every secret that there is, then say what was seen."""
    if not request.tool_results:
        run = f"python3 -c {shlex.quote(PRINT)}"
        return ModelReply(tools=(ToolUse("shell", {"command": run}),))
    return ModelReply(text=f"I have seen {KEY}.\n{request.tool_results[-1]}")


@pytest.fixture
def leaky(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a task whose tests print what the agent left."""
    bench("tasks", "init", "leaky")
    task = tmp_path / "leaky"
    (task / "tests" / "test.sh").write_text(TESTS)
    monkeypatch.setenv("BENCHFLOW_API_KEY", KEY)
    return task


def leaks(directory: Path) -> list[tuple[str, bytes]]:
    return [
        (str(path.relative_to(directory)), form)
        for path in directory.rglob("*")
        if path.is_file()
        for form in (form for secret in (SECRET, KEY) for form in forms(secret))
        if form in path.read_bytes()
    ]


def test_no_secret_that_an_agent_prints_is_in_any_file_of_its_rollout_or_exports(
    bench: Any, tmp_path: Path, leaky: Path
) -> None:
    with ScriptedLlm(spill) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        told = ("--agent-env.CANARY", SECRET)
        tasks = ("--tasks-dir", leaky, "--job-name", "job")
        report = bench("eval", "create", *tasks, *endpoint, *told, "--json")
    assert report["mean_reward"] == 1.0
    # The model was told all of it, as the agent was.
    assert SECRET in llm.requests[-1].tool_results[-1]
    [rollout] = [path.parent for path in (tmp_path / "jobs/job").glob("*/result.json")]
    bench("eval", "export", "job", "--output", tmp_path / "jobs/harbor")
    bench("rollout", "export", rollout, "--output", tmp_path / "jobs/rows.jsonl")
    names = {str(path.relative_to(rollout)) for path in rollout.rglob("*") if path.is_file()}
    assert {"events.jsonl", "agent/acp_wire.jsonl", "verifier/test-stdout.txt"} <= names
    assert leaks(tmp_path / "jobs") == []
    assert "[redacted]" in (rollout / "events.jsonl").read_text()
    assert "[redacted]" in (rollout / "verifier/test-stdout.txt").read_text()
    for path in rollout.rglob("*.jsonl"):
        assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())


def test_a_redacted_rollout_is_repeated_from_its_record(
    bench: Any, tmp_path: Path, leaky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedLlm(spill) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        told = ("--agent-env.CANARY", SECRET)
        record = bench("run", leaky, *endpoint, *told, "--json")
        assert record["reward"] == 1.0
        made = len(llm.requests)
        rollout = tmp_path / record["directory"]
        bench("rollout", "replay", rollout, code=2)
        monkeypatch.setenv("CANARY", SECRET)
        again = bench("rollout", "replay", rollout, "--json")
        assert len(llm.requests) == made
    assert again["same"]
    assert leaks(tmp_path / "jobs") == []
