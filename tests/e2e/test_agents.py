"""Agents as the command line shows them."""

from typing import Any


def test_the_scripted_agent_passes_its_own_probe_in_a_real_box(bench: Any) -> None:
    report = bench("agent", "probe", "scripted", "--json")
    assert report["results"] == dict.fromkeys(("start", "write", "load_after_kill", "ask"), "ok")


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
    for name in names - {"oracle", "nop"}:
        assert bench("agent", "show", name, "--json")["declaration"]["id"] == name
