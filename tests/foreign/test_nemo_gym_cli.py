"""NeMo Gym's commands, started as a user starts them, play our task."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
from benchflow_engine.scaffold import write_task
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
SERVERS = (
    "resources_servers/benchflow",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
)
READY = "servers ready"


def free_port() -> int:
    """Return a port that was free just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def make_home(home: Path) -> None:
    """Make a home with the environments that `ng_run` would install for its servers."""
    venv = nemo_gym_home.python(nemo_gym_home.PINNED).parents[1]
    for server in SERVERS:
        (home / "venvs" / server).mkdir(parents=True)
        (home / "venvs" / server / ".venv").symlink_to(venv)


def command(name: str, *args: str) -> list[str]:
    """Return a command of NeMo Gym."""
    return [str(nemo_gym_home.python(nemo_gym_home.PINNED).parent / name), *args]


@contextmanager
def running(args: list[str], home: Path) -> Generator[None]:
    """Start `ng_run`, wait until its servers are ready, and stop it as Ctrl-C does."""
    log = home / "ng_run.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command("ng_run", *args),
            cwd=home,
            env={**os.environ, "PYTHONPATH": "", "RAY_DISABLE_DASHBOARD": "1"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        seen = ""
        try:
            for line in process.stdout:
                seen += line
                if READY in line:
                    break
            else:
                raise AssertionError(f"{seen[-3000:]}\n{log.read_text()[-3000:]}")
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate(timeout=30)


@contextmanager
def serving(task: Path, home: Path) -> Generator[None]:
    """Run `bench tasks serve`, which writes a project into `home`; stop it as Ctrl-C does."""
    process = subprocess.Popen(
        [
            *(Path(sys.executable).parent / "bench", "tasks", "serve", task),
            *("--protocol", "nemo-gym", "--sandbox", "local", "--port", "0"),
            *("--jobs-dir", home / "jobs", "--client-files", home, "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def play(home: Path, llm_url: str) -> dict[str, Any]:
    """Start the servers and collect rollouts by commands; return the only rollout."""
    args = [
        "+head_server.host=127.0.0.1",
        f"+head_server.port={free_port()}",
        "+config_paths=[benchflow.yaml,responses_api_models/vllm_model/configs/vllm_model.yaml]",
        f"+policy_base_url={llm_url}/v1",
        "+policy_api_key=unused",
        "+policy_model_name=scripted",
        f"+uv_venv_dir={home / 'venvs'}",
        "+skip_venv_if_present=true",
    ]
    with running(args, home):
        done = subprocess.run(
            command(
                "ng_collect_rollouts",
                *args,
                "+agent_name=benchflow_simple_agent",
                "+input_jsonl_fpath=rows.jsonl",
                "+output_jsonl_fpath=rollouts.jsonl",
            ),
            cwd=home,
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (line,) = (home / "rollouts.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_ng_run_and_ng_collect_rollouts_play_our_task(tmp_path: Path):
    write_task(tmp_path / "task")
    make_home(tmp_path)

    def act(request: ModelRequest) -> ModelReply:
        if request.tool_results:
            return ModelReply(text="Done.")
        solve = "printf 'hello, world\\n' > greeting.txt"
        return ModelReply(tools=(ToolUse("bash", {"command": solve}),))

    with ScriptedLlm(act) as llm, serving(tmp_path / "task", tmp_path):
        rollout = play(tmp_path, llm.url)
    assert rollout["reward"] == 1.0
    kinds = [item["type"] for item in rollout["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"]
