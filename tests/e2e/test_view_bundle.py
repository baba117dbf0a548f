"""`bench view bundle` of a real rollout: its files, and what the command reports."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.entry import run


def test_a_real_rollout_is_bundled_with_its_differences_and_without_a_server(
    demo: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs, target = demo["directory"].parent, tmp_path / "pages"
    words = ["view", "bundle", str(target), "--rollout", demo["rollout_id"][:-1]]
    capfd.readouterr()
    assert run([*words, "--jobs-dir", str(jobs), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)

    pages = json.loads((target / "bundle.json").read_text())["pages"]
    assert report["rollouts"] == 1
    assert report["pages"] == len(pages) + 1
    assert report["omitted_pages"] == 0
    assert [url for url in pages.values() if "/diff?" in url]
    nodes = [
        node["id"] for node in json.loads((demo["directory"] / "tree.json").read_text())["nodes"]
    ]
    for node in nodes:
        assert f"/r/{demo['rollout_id']}?sel={node}" in pages.values()

    assert run([*words, "--jobs-dir", str(jobs)]) == 2
    assert "is not empty" in capfd.readouterr().err
    assert run([*words, "--jobs-dir", str(jobs), "--force"]) == 0
    assert f"open {target / 'index.html'}" in capfd.readouterr().err
