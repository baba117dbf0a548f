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


def test_shipped_agents_are_listed_and_can_be_shown(bench: Any) -> None:
    rows = {row["agent"]: row for row in bench("agent", "list", "--json")}
    names = set(rows)
    vibe, auggie = rows["mistral-vibe"], rows["auggie"]
    assert "test_real_agents.py -k mistral-vibe" in vibe["command"]
    assert {proof["proven"] for proof in vibe["proofs"]} == set(vibe["proven"])
    assert all(proof["date"] and "bench run" in proof["command"] for proof in vibe["proofs"])
    assert (auggie["run"], auggie["command"][:9]) == ("-", "untested:")
    shown = {"policy", "scripted", "mistral-vibe", "claude-agent-acp"}
    assert {"oracle", "nop", "codex-acp", *shown} <= names
    for name in shown:
        assert bench("agent", "show", name, "--json")["declaration"]["id"] == name
