"""Inspect's own package runs tasks, and its checks, in sandboxes of BenchFlow."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from inspect_judge import PROGRAMS, run_inspect, run_program
from scripted_llm import ModelReply, ScriptedLlm

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]

IMAGE = os.environ.get("BENCHFLOW_DOCKER_IMAGE")
AS_ROOT = {
    "test_read_file_not_allowed": "root may read every file",
    "test_write_text_file_without_permissions": "root may write every file",
    "test_write_binary_file_without_permissions": "root may write every file",
}
"""Checks that need a default user with fewer rights than root."""


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    shutil.copy(PROGRAMS / "word_task.py", tmp_path)
    return tmp_path


def test_inspects_self_check_of_providers_passes_in_a_local_sandbox(tmp_path: Path) -> None:
    outcomes = run_program(tmp_path, "self_check.py", json.dumps({"provider": "local"}))
    assert len(outcomes) == 44
    assert {name: o for name, o in outcomes.items() if o != "passed"} == {}


def test_root_in_a_local_sandbox_fails_only_the_checks_of_missing_rights(tmp_path: Path) -> None:
    config = json.dumps({"provider": "local", "user": "root"})
    outcomes = run_program(tmp_path, "self_check.py", config)
    assert {name for name, o in outcomes.items() if o != "passed"} == set(AS_ROOT)


@pytest.mark.skipif(IMAGE is None, reason="set BENCHFLOW_DOCKER_IMAGE to an image of this engine")
def test_the_image_of_a_docker_sandbox_has_rights_and_programs_of_its_own(tmp_path: Path) -> None:
    outcomes = run_program(tmp_path, "self_check.py", json.dumps({"image": IMAGE}))
    failed = {name: o for name, o in outcomes.items() if o != "passed"}
    # The image runs as root, and a small one does not have `adduser`.
    assert failed.keys() - {"test_exec_as_user"} == AS_ROOT.keys()
    assert "adduser" in failed.get("test_exec_as_user", "adduser")


@pytest.mark.skipif(IMAGE is None, reason="set BENCHFLOW_DOCKER_IMAGE to an image of this engine")
def test_a_connection_to_a_docker_sandbox_is_a_shell_of_its_user(tmp_path: Path) -> None:
    facts = run_program(tmp_path, "connect.py", IMAGE)
    assert facts["shell None"] == ["user=root dir=/var/tmp"]
    assert facts["shell nobody"] == ["user=nobody dir=/var/tmp"]
    assert facts["running"] == "true"
    assert (facts["exec root"], facts["exec nobody"]) == ([0, "root"], [0, "nobody"])
    code, output = facts["exec absent"]
    assert (code, output) == (126, "")
    assert facts["left"] == ""


SERVICE = """
services:
  web:
    image: {image}
    hostname: shop
    networks: [inside]
    command: sh -c "cp /etc/hostname /tmp && cd /tmp && exec python3 -m http.server $$PORT"
    environment: {{PORT: '8000'}}
    healthcheck:
      test: [CMD, python3, -c, "import socket; socket.create_connection(('localhost', 8000))"]
      interval: 500ms
  default:
    image: {image}
    command: sleep infinity
    depends_on: {{web: {{condition: service_healthy}}}}
    networks: [inside]
networks:
  inside: {{internal: true}}
"""


@pytest.mark.skipif(IMAGE is None, reason="set BENCHFLOW_DOCKER_IMAGE to an image of this engine")
def test_a_service_of_a_compose_file_answers_the_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    text = SERVICE.format(image=IMAGE).replace(
        "    hostname", "    networks: [inside]\n    hostname"
    )
    file.write_text(text)
    facts = run_program(tmp_path, "composed_eval.py", file, tmp_path / "logs")
    assert (facts["status"], facts["output"], facts["scores"]) == (
        "success",
        "shop",
        {"match": "C"},
    )
    # The agent reaches the service; a solver has no sandbox environment of the service.
    assert "web" in facts["other"]
    assert facts["services"] == ["web"]
    shutil.copy(PROGRAMS / "composed_task.py", tmp_path)
    with ScriptedLlm(lambda request: ModelReply(text=request.user_text)) as llm:
        done = run_inspect(
            tmp_path, PROGRAMS / "run_sample.py", f"inspect:composed_task.py@composed?file={file}",
            "--agent", "inspect-solver", "--sandbox", "docker", "--jobs-dir", "jobs",
            "--base-url", f"{llm.url}/v1", "--model", "none", "--json",
        )  # fmt: skip
    assert json.loads(done.stdout)["reward"] == 1.0, done.stdout + done.stderr


def test_inspect_eval_runs_a_task_in_our_sandbox(task_dir: Path) -> None:
    done = run_inspect(
        task_dir, "-m", "inspect_ai", "eval", "word_task.py@words", "--model", "none/none",
        "--log-format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (task_dir / "logs").glob("*.json")
    log = json.loads(path.read_text())
    assert log["status"] == "success"
    assert [_values(sample) for sample in log["samples"]] == [{"file_is": "C", "includes": "C"}] * 2
    assert log["eval"]["sandbox"]["type"] == "benchflow"


def test_an_unknown_provider_ends_the_evaluation_before_a_sample(task_dir: Path) -> None:
    (task_dir / "benchflow-sandbox.toml").write_text('provider = "absent"\n')
    done = run_inspect(
        task_dir, "-m", "inspect_ai", "eval", "word_task.py@words", "--model", "none/none"
    )
    assert done.returncode != 0
    assert "absent" in done.stdout + done.stderr


def test_our_agent_is_a_solver_whose_calls_are_model_events(task_dir: Path) -> None:
    result = _agent_eval(task_dir, "policy")
    (sample,) = result["samples"]
    assert result["status"] == "success"
    assert sample["scores"] == {"file_is": "C", "includes": "C"}
    assert sample["events"].count("model") == 2
    assert sample["roles"] == ["system", "user", "assistant", "tool", "assistant"]
    assert sample["usage"] == {"scripted/x": 30}


def test_the_scripted_agent_acts_without_a_model(task_dir: Path) -> None:
    shutil.copy(PROGRAMS / "scripted_eval.py", task_dir)
    done = run_inspect(task_dir, "scripted_eval.py", task_dir / "logs")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["scores"]) == ("success", {"file_is": "C"})
    assert [role for role, _ in result["messages"]] == ["user", "assistant", "tool"]


def test_a_token_limit_of_inspect_ends_our_agent(task_dir: Path) -> None:
    (sample,) = _agent_eval(task_dir, "policy", "20")["samples"]
    assert sample["limit"] == "token"
    assert sample["usage"] == {"scripted/x": 30}


def _agent_eval(task_dir: Path, *args: str) -> dict[str, Any]:
    shutil.copy(PROGRAMS / "agent_eval.py", task_dir)
    done = run_inspect(task_dir, "agent_eval.py", task_dir / "logs", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _values(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: score["value"] for name, score in sample["scores"].items()}


COMPOSE = {
    "limits": "services:\n  default:\n    image: a\n    init: true\n    command: sleep 9\n"
    "    environment: [A=1]\n    network_mode: none\n"
    "    deploy:\n      resources:\n        limits: {memory: 2G, cpus: '1.5'}\n",
    "services": "services:\n  default: {image: a}\n  db: {image: b, privileged: true}\n",
    "variable": "services:\n  default: {image: a}\n  db: {image: b, command: echo $HOME}\n",
    "network": "services:\n  default: {image: a, network_mode: none}\n  db: {image: b}\n",
    "needs": "services:\n  default: {image: a, depends_on: [queue]}\n  db: {image: b}\n",
    "port": "services:\n  default:\n    image: a\n    ports: ['80:80']\n",
    "device": "services:\n  default:\n    image: a\n    deploy:\n      resources:\n"
    "        reservations:\n          devices: [{driver: nvidia, count: 1}]\n",
    "unknown": "services:\n  default:\n    image: a\n    priviliged: true\n",
}


def test_a_compose_file_is_read_or_refused_by_the_name_of_its_key(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}-compose.yaml" for name in COMPOSE]
    for path, text in zip(paths, COMPOSE.values(), strict=True):
        path.write_text(text)
    limits, *errors = run_program(tmp_path, "read_compose.py", *paths)
    assert limits == {"image": "a", "env": {"A": "1"}, "memory_mb": 2048, "cpus": 1.5}
    expected = [
        "services.db.privileged",
        "services.db.command refers to a variable",
        "services.default.network_mode",
        "services.default.depends_on.queue",
        "services.default.ports",
        "services.default.deploy.resources.reservations.devices",
        "priviliged",
    ]
    assert [key in each["error"] for key, each in zip(expected, errors, strict=True)] == [True] * 7
