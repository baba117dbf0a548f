"""One reader opens a rollout's directory, whether the rollout has ended or not."""

from pathlib import Path

import pytest
from benchflow_contracts import (
    BenchFlowError,
    ModelCall,
    NodeScored,
    RolloutFinished,
    RolloutStarted,
    Step,
    StepFinished,
    StoreError,
    Task,
    TaskConfig,
    UsageError,
    VerifyResult,
)
from benchflow_store import (
    RanWith,
    StoredRollout,
    read_finished_rollouts,
    read_records,
    record_from_error,
    record_from_tree,
    write_inputs,
    write_result,
    write_rollout,
)

RAN = RanWith("oracle", "provider/model", "local")
STEP = Step(id="s1", message="Done.", model_calls=("c1",), started_at=1.0, finished_at=2.0)
EVENTS = [
    RolloutStarted(seq=0, ts=0, rollout_id="paint__1", task_id="old/paint", root="n0"),
    StepFinished(seq=1, ts=2, node="n1", parent="n0", step=STEP),
    NodeScored(seq=2, ts=3, node="n1", name="reward", result=VerifyResult(reward=1.0)),
    RolloutFinished(seq=3, ts=3, status="completed"),
]
CALL = ModelCall(
    id="c1",
    node="n0",
    api="openai-chat",
    model="m",
    request={"messages": []},
    status=200,
    started_at=1.0,
    finished_at=1.5,
)


def task() -> Task:
    return Task(
        id="old/paint",
        path=Path("/no/such/task"),
        digest="sha256:0",
        instruction="Paint the fence.",
        config=TaskConfig(name="old/paint"),
    )


def begun(directory: Path, *, events=EVENTS) -> Path:
    """Write what a running rollout has on disk."""
    directory.mkdir(parents=True)
    write_inputs(directory, task(), RAN, {"seed": 7})
    text = "".join(event.model_dump_json() + "\n" for event in events)
    (directory / "events.jsonl").write_text(text)
    return directory


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_finished_rollout_is_read_as_it_was_written(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1")
    stored = StoredRollout(home)
    write_rollout(home, stored.tree, stored.log.events)
    record = record_from_tree(stored.tree, task(), RAN)
    write_result(home, record)

    assert stored.record == record
    assert stored.config.ran == RAN
    assert stored.config.run == {"seed": 7}
    assert stored.config.is_own
    finished = stored.read_finished()
    assert finished.instruction == "Paint the fence."
    assert (finished.agent, finished.sandbox, finished.finished_at) == ("oracle", "local", 3)
    assert [leaf.reward for leaf in finished.tree.leaves] == [1.0]


def test_a_running_rollout_has_a_tree_and_no_record(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1", events=EVENTS[:2])
    with (home / "events.jsonl").open("a") as file:
        file.write('{"seq": 2, "ts"')
    stored = StoredRollout(home)
    assert stored.has_begun
    assert stored.record is None
    assert stored.tree.status == "running"
    assert stored.log.torn_bytes == len('{"seq": 2, "ts"')
    assert [node.id for node in stored.tree.nodes] == ["n0", "n1"]


def test_a_rollout_that_has_grown_is_read_with_its_new_events(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1", events=EVENTS[:2])
    earlier = StoredRollout(home)
    assert earlier.tree.status == "running"
    with (home / "events.jsonl").open("a") as file:
        file.writelines(f"{event.model_dump_json()}\n" for event in EVENTS[2:])
    later = earlier.with_new_events()
    assert later.log == StoredRollout(home).log
    assert later.tree.status == "completed"
    assert earlier.tree.status == "running"


def test_nodes_and_leaves_are_found_by_id(tmp_path: Path) -> None:
    stored = StoredRollout(begun(tmp_path / "paint__1"))
    assert stored.node("n0") is stored.tree.root
    assert stored.leaf() is stored.leaf("n1") is stored.tree.index["n1"]
    with pytest.raises(UsageError, match="the tree has no node 'n7'") as unknown:
        stored.node("n7")
    assert unknown.value.hint == "nodes: n0, n1"
    with pytest.raises(UsageError, match="'n0' is not a leaf"):
        stored.leaf("n0")


def test_the_model_calls_of_a_path_are_in_order(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1")
    (home / "model").mkdir()
    (home / "model" / "n0.jsonl").write_text(CALL.model_dump_json() + "\n")
    stored = StoredRollout(home)
    assert stored.calls == {"c1": CALL}
    assert stored.calls_to(stored.leaf()) == (CALL,)
    assert stored.calls_to(stored.tree.root) == ()
    assert stored.read_finished().calls == {"c1": CALL}


@pytest.mark.parametrize("name", ["config.json", "prompts.json"])
@pytest.mark.parametrize("text", ["{", "{}", "[]", "null", '{"run": 1, "task_digest": ""}'])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    home = begun(tmp_path / "paint__1")
    (home / name).write_text(text)
    with pytest.raises(StoreError, match="record") as caught:
        StoredRollout(home).read_finished()
    assert str(home / name) in str(caught.value)


def test_a_changed_config_is_not_this_users_own(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1")
    config = home / "config.json"
    config.write_text(config.read_text().replace('"seed": 7', '"seed": 8'))
    assert not StoredRollout(home).config.is_own


def test_a_directory_without_a_rollout_is_a_store_error(tmp_path: Path) -> None:
    stored = StoredRollout(tmp_path)
    assert not stored.has_begun
    for read in (lambda: stored.tree, lambda: stored.config, stored.read_finished):
        with pytest.raises(StoreError):
            read()


def test_a_rollout_never_replaces_another(tmp_path: Path) -> None:
    home = begun(tmp_path / "paint__1")
    with pytest.raises(StoreError, match="already has a rollout"):
        write_inputs(home, task(), RAN, {})


def test_a_job_has_the_rollouts_that_ran_and_the_refused_rollouts(tmp_path: Path) -> None:
    ran, refused = begun(tmp_path / "paint__1"), tmp_path / "paint__2"
    write_result(ran, record_from_tree(StoredRollout(ran).tree, task(), RAN))
    error = BenchFlowError("there is no sandbox")
    write_result(refused, record_from_error("paint__2", task(), RAN, error))

    records = list(read_records(tmp_path))
    assert [record.rollout_id for record in records] == ["paint__1", "paint__2"]
    first, second = read_finished_rollouts(tmp_path, records)
    assert first.tree.leaves[0].reward == 1.0
    assert second.tree.error is not None
    assert second.tree.error.message == "there is no sandbox"
    assert [node.id for node in second.tree.nodes] == ["n0"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "paint__1").mkdir()
    (tmp_path / "paint__1" / "result.json").write_text("{}")
    with pytest.raises(StoreError, match="paint__1"):
        list(read_records(tmp_path))
