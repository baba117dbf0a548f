"""Branches of a stored rollout: which checkpoint, at which fidelity, at which cost, and as whom."""

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Fidelity, RolloutTree, SandboxImage
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.actions import launch
from benchflow_dashboard.index import Index, update_index
from benchflow_kernel import CHECKPOINT_FILE, CheckpointManifest
from benchflow_kernel.rollout.checkpoint_manifest import SavedTurn
from benchflow_store import seal_config
from dashboard_forms import csrf_of
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from watching import until

Client = TestClient[Litestar]
ROLLOUT = "made__01"


def forked() -> RolloutTree:
    """n0 has the children n1 (leaf n2, reward 0.5) and n3 (leaf n4, reward 1)."""
    return tree_of_climbs([0, 0, 2, 0])


def save(
    rollout: Path,
    name: str,
    fidelity: Fidelity = "state",
    *,
    ended: bool = False,
    own: bool = True,
    prompts: int = 1,
) -> None:
    image = SandboxImage(
        provider="local", level="filesystem", consistency="instant", ref="r", digest="d", bytes=1
    )
    manifest = CheckpointManifest(
        rollout_id=ROLLOUT,
        task_id="made/task",
        task_digest="sha256:0",
        node=name.partition(".")[0],
        turn=0,
        checkpoint_turn=0,
        ended=ended,
        fidelity=fidelity,
        ref="r",
        layers={},
        image=image,
        schedule=(SavedTurn(scene="s", role="agent", agent="made", prompt="go"),) * prompts,
        taken_at=1.0,
    ).model_dump(mode="json", exclude={"seal"})
    home = rollout / "checkpoints" / name
    home.mkdir(parents=True)
    sealed = seal_config(manifest) if own else {**manifest, "seal": "of another user"}
    (home / CHECKPOINT_FILE).write_text(json.dumps(sealed))


@pytest.fixture
def rollout(jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (jobs / "night").mkdir()
    (jobs / "night" / "job.json").write_text("{}")
    return write_rollout(forked(), jobs / "night" / ROLLOUT)


@pytest.fixture
def client(rollout: Path, settings: DashboardSettings, tmp_path: Path) -> Iterator[Client]:
    update_index(settings.index_path(), settings.jobs_dir)
    app = create_app(settings, index=Index(settings.index_path(), settings.jobs_dir))
    with TestClient(app, base_url="http://127.0.0.1:8642") as client:
        yield client


def shown(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def facts(text: str) -> dict[str, str]:
    return dict(re.findall(r'data-fact="(\w+)">([^<]*)<', text))


def confirm(client: Client, node: str, action: str = "branch") -> str:
    answer = client.get(f"/r/{ROLLOUT}/act/{action}?node={node}")
    assert answer.status_code == 200, answer.text
    return answer.text


def post(client: Client, action: str, **fields: str) -> Any:
    return client.post(f"/r/{ROLLOUT}/act/{action}", data={"csrf": csrf_of(client), **fields})


def test_the_page_says_the_fidelity_and_why_not_a_better_one(client: Client, rollout: Path) -> None:
    save(rollout, "n1", "live")
    save(rollout, "n3", "state")
    save(rollout, "n0", "replay")

    assert facts(confirm(client, "n1"))["fidelity"] == "live"
    assert "why" not in facts(confirm(client, "n1"))
    state = facts(confirm(client, "n3"))
    assert state["fidelity"] == "state"
    assert "no processes" in state["why"]
    assert "recorded model calls" in facts(confirm(client, "n0"))["why"]
    pane = shown(client.get(f"/r/{ROLLOUT}?sel=n3").text)
    assert "Branch here state ✓ not better: the checkpoint has files" in pane


def test_the_cost_is_unknown_or_the_mean_of_the_job(client: Client, rollout: Path) -> None:
    save(rollout, "n1")
    found = facts(confirm(client, "n1"))

    assert "cost unknown: no rollout of this task in this job reported a cost" in found["cost"]
    assert "over 1 rollouts of this task in this job" in found["time"]


def test_a_node_without_a_checkpoint_names_the_nearest_one_above(
    client: Client, rollout: Path
) -> None:
    save(rollout, "n1")
    for text in (confirm(client, "n2"), client.get(f"/r/{ROLLOUT}?sel=n2").text):
        assert "no checkpoint was saved at node 'n2'" in shown(text)
        assert "the nearest one above is at 'n1'" in shown(text)
        assert "--keep forks" in shown(text)
    assert "no checkpoint was saved at node 'n2'" in shown(post(client, "branch", node="n2").text)


def test_a_checkpoint_of_another_user_is_refused(client: Client, rollout: Path) -> None:
    save(rollout, "n1", own=False)
    text = shown(post(client, "branch", node="n1").text)

    assert "refused" in text
    assert "was not saved by this user here" in text


def test_a_damaged_checkpoint_is_refused(client: Client, rollout: Path) -> None:
    save(rollout, "n1")
    (rollout / "checkpoints" / "n1" / CHECKPOINT_FILE).write_text("[")
    assert "not a checkpoint" in shown(confirm(client, "n1"))


def test_the_end_of_the_agent_only_grades_again(client: Client, rollout: Path) -> None:
    save(rollout, "n2", ended=True)
    assert "only the grading runs again" in shown(confirm(client, "n2"))


def test_a_state_without_remaining_prompts_needs_a_new_one(
    client: Client, rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = program(tmp_path / "bench")
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    save(rollout, "n1", prompts=0)
    assert "a new prompt is needed" in shown(confirm(client, "n1"))
    assert "all prompts were used" in shown(post(client, "branch", node="n1").text)

    url = str(post(client, "branch", node="n1", prompt="--json and 'more'").url)
    until("the end", lambda: 'data-outcome="ended"' in client.get(url).text)
    assert "--prompt=--json and 'more' --jobs-dir" in unescape(client.get(url).text)


def program(path: Path) -> str:
    path.write_text('#!/bin/sh\necho "called with $*"\n')
    path.chmod(0o755)
    return str(path)


def test_a_branch_starts_the_command_that_the_page_names(
    client: Client,
    rollout: Path,
    settings: DashboardSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = program(tmp_path / "bench")
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    save(rollout, "n1")
    save(rollout, "n1.2", "live")
    save(rollout, "n1.3", "state")
    save(rollout, "n1.4", "live", own=False)
    page = confirm(client, "n1")
    named = f"rollout branch {rollout} --at n1.2 --n 1 --jobs-dir {settings.jobs_dir}"
    assert f"bench {named}" in unescape(page)

    url = str(post(client, "branch", node="n1", n="3").url)
    until("the end", lambda: 'data-outcome="ended"' in client.get(url).text)
    text = unescape(client.get(url).text)
    assert f"called with {named.replace('--n 1', '--n 3')}" in text


def test_a_prompt_that_no_command_can_have_is_refused(
    client: Client, rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = program(tmp_path / "bench")
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    save(rollout, "n1")
    assert 'data-outcome="refused"' in post(client, "branch", node="n1", prompt="a\0b").text


def test_the_best_child_is_restored_from_its_last_state_with_turns_left(
    client: Client, rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = program(tmp_path / "bench")
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    assert "no checkpoint with turns left" in shown(confirm(client, "n0", "restore-best"))
    save(rollout, "n1", "live")
    save(rollout, "n3", "state")
    save(rollout, "n3.2", "live", prompts=0)
    save(rollout, "n4", ended=True)

    page = confirm(client, "n0", "restore-best")
    assert facts(page)["checkpoint"] == "n3"
    assert "from the state of child 'n3' (V 1.00)" in shown(page)
    url = str(post(client, "restore-best", node="n0").url)
    until("the end", lambda: 'data-outcome="ended"' in client.get(url).text)
    assert "--at n3 " in client.get(url).text


def test_only_a_fork_has_a_best_child(client: Client, rollout: Path) -> None:
    assert client.get(f"/r/{ROLLOUT}/act/restore-best?node=n1").status_code == 404
    assert "Restore the best child" not in client.get(f"/r/{ROLLOUT}?sel=n1").text
    assert "Restore the best child" in client.get(f"/r/{ROLLOUT}?sel=n0").text


def test_an_unknown_node_or_action_is_not_found(client: Client) -> None:
    for path in ("branch", "branch?node=n99", "branch?node=../n1", "replay?node=n1"):
        assert client.get(f"/r/{ROLLOUT}/act/{path}").status_code == 404, path


def test_a_wrong_number_of_continuations_is_refused(client: Client, rollout: Path) -> None:
    save(rollout, "n1")
    for count in ("0", "65", "-1", "x", ""):
        assert post(client, "branch", node="n1", n=count).status_code == 400, count
