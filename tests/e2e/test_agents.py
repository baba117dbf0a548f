"""Agents as the command line shows them."""

import asyncio
from pathlib import Path
from typing import Any

from benchflow_agent_acp.builtin import scripted
from benchflow_sandbox_local import LocalProvider


async def can_fork_live() -> bool:
    async with LocalProvider() as provider:
        return "live" in (await provider.capabilities()).snapshot_levels


def test_the_scripted_agent_passes_its_own_probe_in_a_real_box(bench: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_bytes(scripted().declaration_path.read_bytes())
    report = bench("agent", "probe", mine, "--write", "--json")
    expected = {"start", "write", "load_after_kill", "ask", "state", "replay-ask"}
    if asyncio.run(can_fork_live()):
        expected |= {"live", "live-ask"}
    assert report["results"] == dict.fromkeys(expected, "ok")
    shown = bench("agent", "show", mine, "--json")
    assert shown["capabilities"]["proven"]["state"] == f"1.0.0 {report['date']}"


def test_every_shipped_agent_is_listed_and_can_be_shown(bench: Any) -> None:
    names = {row["agent"] for row in bench("agent", "list", "--json")}
    assert {
        "oracle",
        "nop",
        "policy",
        "scripted",
        "mistral-vibe",
        "claude-agent-acp",
        "codex-acp",
    } <= names
    for name in names - {"oracle", "nop", "tool-session", "inspect-solver"}:
        assert bench("agent", "show", name, "--json")["declaration"]["id"] == name
