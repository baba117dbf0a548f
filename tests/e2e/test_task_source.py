"""Tasks of a server, by the names that a package registers: listed, run, and run as a job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from vault_world import Vault, vault_server

pytestmark = pytest.mark.timeout(300)

BENCH = Path(sys.executable).with_name("bench")
ENTRY_POINTS = """
[benchflow.environments]
vault = vault_world:environment

[benchflow.task_sources]
vault = vault_world:VaultTasks
"""


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """Run `bench` with the vault's package installed."""
    info = tmp_path / "site" / "vault-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    support = Path(sys.modules["vault_world"].__file__ or "").parent
    env = {
        **os.environ,
        "PYTHONPATH": f"{info.parent}{os.pathsep}{support}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NO_COLOR": "1",
    }

    def call(*args: object) -> Any:
        done = subprocess.run(
            [BENCH, *map(str, args), "--json"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    return call


@pytest.fixture
def vault() -> Iterator[Vault]:
    with vault_server() as served:
        yield served


def opening(request: ModelRequest) -> ModelReply:
    """Open vault 1 or 2 at the first try."""
    if request.tool_results:
        return ModelReply(text="Done.")
    number = 7 if "vault 1" in request.user_text else 14
    return ModelReply(tools=(ToolUse("mcp__world__try", {"number": number}),))


def test_tasks_of_a_server_are_listed_and_run_alone_and_as_a_job(bench: Any, vault: Vault) -> None:
    source = f"vault://{vault.url.removeprefix('http://')}"
    listed = bench("tasks", "list", f"{source}?split=endless&start=1&limit=2")
    assert [task["id"] for task in listed] == ["vault/1", "vault/2"]
    with ScriptedLlm(opening) as llm:
        model = ("--agent", "policy", "--base-url", f"{llm.url}/v1", "--model", "scripted")
        record = bench("run", f"{source}?split=endless&index=2", *model)
        assert (record["task_id"], record["reward"]) == ("vault/2", 1.0)
        assert record["task_digest"] == listed[1]["digest"]
        report = bench(
            "eval", "create", "--tasks-dir", f"{source}?split=test&start=1&limit=2", *model
        )
    assert report["scored"] == 2
    assert vault.open == set()
