"""A live fork on each backend. The SDKs of clouds run against our servers, never on a cloud."""

import asyncio
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_kernel.errors import FidelityError
from benchflow_sandbox_local import LocalProvider
from scripted_llm import ScriptedLlm, book_the_review

CLAWSBENCH = Path(__file__).parents[2] / "benchmarks/clawsbench"
TASK = CLAWSBENCH / "tasks/book-the-review-room"
IMAGE = "clawsbench-base:latest"
IMAGES = {IMAGE: SandboxSpec(image=IMAGE, image_search=(str(CLAWSBENCH / "images"),))}
LIVE = ["e2b"]
REFUSED = [("daytona", "replay"), ("kubernetes", "replay"), ("modal", "live")]
"""With the lowest fidelity that each one refuses."""


def run(name: str, directory: Path, require: str = "live") -> tuple[Any, Any, list[Any]]:
    """Fork the task's agent at its question; return the result, the server and the requests."""
    backend = importlib.import_module(f"remote_backends.{name}")
    options = {"agent": "policy", "branch": "ask-user", "branch_require": require}

    async def main(url: str) -> tuple[Any, Any]:
        model = {"base_url": f"{url}/v1", "model": "scripted", "upstream": "vllm"}
        async with LocalProvider() as local, backend.account(local, IMAGES) as (provider, server):
            config = run_config(**options, **model)
            try:
                return await run_in(
                    provider, runnable_task(TASK), config, directory=directory
                ), server
            except FidelityError as error:
                return error, server

    with ScriptedLlm(book_the_review) as llm:
        result, server = asyncio.run(main(llm.url))
        return result, server, llm.requests


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LIVE)
def test_a_live_fork_grades_each_answer(name: str, tmp_path: Path) -> None:
    result, server, requests = run(name, tmp_path / "rollout")
    tree = json.loads((tmp_path / "rollout/tree.json").read_text())
    (fork,) = [node["branch"] for node in tree["nodes"] if node["branch"]]
    assert fork["fidelity"] == "live"
    assert sorted(leaf.reward for leaf in result.tree.leaves) == [0.0, 0.25, 1.0]
    # The prefix of the children was sampled once.
    assert sum(not request.tool_results for request in requests) == 1
    assert (dict(server.made), dict(server.snapshots)) == ({}, {})


@pytest.mark.timeout(120)
def test_clouds_without_snapshots_refuse_a_fork_before_anything_runs(tmp_path: Path) -> None:
    for name, require in REFUSED:
        result, server, requests = run(name, tmp_path / name / require, require)
        assert isinstance(result, FidelityError), result
        assert re.search(rf"sandbox {name!r} (cannot take|has no live) .*snapshots", str(result))
        # Nothing ran.
        assert (server.creations, requests) == (0, [])
