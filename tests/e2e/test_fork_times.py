"""What a fork costs is on the record: of the parent, of each child, and of no one's waiting."""

import json
from typing import Any


def test_the_parts_of_a_fork_are_in_the_timing_and_in_the_tree(
    demo: dict[str, Any], bench: Any
) -> None:
    tree = json.loads((demo["directory"] / "tree.json").read_text())
    timing = json.loads((demo["directory"] / "timing.json").read_text())
    nodes = {node["id"]: node for node in tree["nodes"]}
    assert timing["forks"] == {n: node["took_sec"] for n, node in nodes.items() if node["took_sec"]}
    (forked,) = (node for node in nodes.values() if node["branch"])
    children = [node for node in nodes.values() if node["parent"] == forked["id"]]
    if forked["branch"]["fidelity"] == "live":
        took = forked["took_sec"]
        parts = {"quiesce", "checkpoint", "engine", "frozen", "dump", "digest"}
        assert took.keys() == parts
        assert 0 < took["dump"] <= took["frozen"] < took["checkpoint"]
    for child in children:
        took = child["took_sec"]
        parts = {"waited", "restore", "ready", "connect", "first_step", "until_running"}
        assert took.keys() == parts
        before = sum(took[name] for name in ("waited", "restore", "ready", "connect"))
        assert 0 < before < took["until_running"] + 0.001
    leaf = next(node["id"] for node in nodes.values() if node["parent"] == children[0]["id"])
    shown = bench("rollout", "show", demo["directory"], "--leaf", leaf)
    assert "until running" in shown
    assert "quiesce" in shown
    drawn = bench("rollout", "tree", demo["directory"])
    assert drawn.count("until running") == len(children)


def test_a_world_that_was_torn_down_takes_no_more_time(demo: dict[str, Any]) -> None:
    timing = json.loads((demo["directory"] / "timing.json").read_text())
    lines = (demo["directory"] / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    closed = {event["node"]: event["ts"] for event in events if event["kind"] == "world_closed"}
    assert closed.keys() == timing["worlds"].keys()
    for world, phases in timing["worlds"].items():
        began = next(e["ts"] for e in events if e["kind"] == "phase_entered" and e["node"] == world)
        assert abs(sum(phases.values()) - (closed[world] - began)) < 0.001
    # The parent is gone before its children have done their work.
    root = events[0]["root"]
    assert closed[root] < max(closed.values())
