"""Which nodes have a state, where it is, and what happens if it cannot be read."""

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest
from benchflow_contracts import EnvironmentError_, EnvState, HostError, Role, StateRef, StoreError
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    GroupBranch,
    RolloutConfig,
    Scene,
    Turn,
    ValueBranch,
    diff_states,
    read_state,
)
from benchflow_kernel.states import StateWriter
from benchflow_testing.fakes import (
    Act,
    FakeAgent,
    FakeReward,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

DAY = ask_with_options("which day?", "monday", "friday")


def insert(value: str) -> Act:
    async def run(session) -> str:
        await FakeWorld(session.sandbox).insert("events", (value,))
        return "ok"

    return Act(run, title=f"insert {value}")


@pytest.fixture
def booking(rig):
    """Two turns; the second one asks, and books the day of the answer."""
    rig.environment_options["tables"] = {"events": []}
    role = Role(agent="fake")
    rig.config["scenes"] = (Scene(roles=(role,), turns=(Turn(), Turn(prompt="now book"))),)
    rig.agent = FakeAgent(
        [
            [insert("first"), Say("ok")],
            [insert("before"), Pose(DAY, lambda answer: [insert(answer.selected["q1"][0])])],
        ]
    )
    return rig


def rows_of(rig, node) -> list[str]:
    state = read_state(rig.directory, node.state_ref)
    return [row[0] for row in state.databases["/state"]["events"].rows]


def nodes_with_a_state(tree) -> set[str]:
    return {node.id for node in tree.nodes if node.state_ref is not None}


@pytest.mark.parametrize("is_live", [False, True])
def test_root_forks_and_leaves_have_the_states_of_their_instant(booking, is_live):
    if is_live:
        booking.live()
    booking.config["branch"] = AskUserBranch()
    tree = booking.run()
    fork = next(node for node in tree.nodes if node.branch is not None)
    monday, friday = tree.leaves
    assert nodes_with_a_state(tree) == {tree.root.id, fork.id, monday.id, friday.id}
    assert rows_of(booking, tree.root) == []
    assert rows_of(booking, fork) == ["first", "before"]
    assert rows_of(booking, monday) == ["first", "before", "monday"]
    states = [read_state(booking.directory, leaf.state_ref) for leaf in (monday, friday)]
    difference = diff_states(*states).databases["/state"]["events"]
    assert (difference.removed, difference.added) == ((("monday",),), (("friday",),))


@pytest.mark.parametrize(("mode", "count"), [("none", 0), ("leaves", 2), ("forks", 4), ("all", 5)])
def test_a_mode_records_the_nodes_of_the_modes_before_it_and_more(booking, mode, count):
    booking.config |= {"branch": AskUserBranch(), "capture_state": mode}
    tree = booking.run()
    assert len(nodes_with_a_state(tree)) == count
    turn_end = next(node for node in tree.nodes if node.step and node.step.stop_reason)
    assert (turn_end.state_ref is not None) == (mode == "all")
    if mode == "all":
        assert rows_of(booking, turn_end) == ["first"]


@pytest.mark.parametrize(
    "policy", [GroupBranch(n=2), GroupBranch(n=2, at=1), ValueBranch(n=2), BestOfBranch(n=2)]
)
def test_each_policy_leaves_a_state_at_each_fork_and_leaf(booking, policy):
    booking.config["branch"] = policy
    tree = booking.run()
    forks = [node for node in tree.nodes if node.branch is not None and node.branch.children]
    assert forks
    assert nodes_with_a_state(tree) >= {n.id for n in (tree.root, *forks, *tree.leaves)}


def test_equal_states_share_one_file_and_are_not_in_the_log(booking):
    booking.agent = FakeAgent([[Say("a")], [Say("b")]])
    booking.config |= {"branch": GroupBranch(n=3, at=1), "capture_state": "all"}
    tree = booking.run()
    files = list((booking.directory / "states").rglob("*.json"))
    assert len(files) == 1
    assert len(nodes_with_a_state(tree)) == 5
    text = files[0].read_bytes()
    ref = tree.root.state_ref
    assert (ref.digest, ref.size) == (f"sha256:{hashlib.sha256(text).hexdigest()}", len(text))
    assert booking.directory / ref.path == files[0]
    assert '"databases"' not in (booking.directory / "events.jsonl").read_text()


def fail_query_when(rig, *, calls: set[int], error: Exception) -> None:
    """Let the queries with these numbers fail, counted over all worlds of the rollout."""
    made, count = rig._environment, iter(range(100))

    def environment():
        world = made()
        query = world.query

        async def counted() -> EnvState:
            if next(count) in calls:
                raise error
            return await query()

        world.query = counted
        return world

    rig._environment = environment


@pytest.mark.parametrize(
    "error", [HostError("no memory"), EnvironmentError_("gone"), OSError(5, "x")]
)
def test_a_root_state_that_cannot_be_read_changes_no_reward(booking, error):
    fail_query_when(booking, calls={0}, error=error)
    tree = booking.run()
    assert (tree.status, tree.error, tree.leaves[0].reward) == ("completed", None, 1.0)
    assert nodes_with_a_state(tree) == {tree.leaves[0].id}
    (event,) = [each for each in booking.events if each.kind == "state_unavailable"]
    assert event.node == tree.root.id
    assert error.args[-1] in event.reason


def test_the_state_of_a_leaf_that_the_host_cannot_read_gives_no_score(booking):
    fail_query_when(booking, calls={1}, error=HostError("no memory"))
    tree = booking.run()
    assert (tree.status, tree.leaves[0].reward) == ("failed", None)
    assert tree.error.caused_by == "host"


def test_a_state_that_cannot_be_written_changes_no_reward(booking, tmp_path: Path):
    booking.rewards = [FakeReward(lambda node, _: float(node.env_state is not None))]
    booking.directory.mkdir()
    (booking.directory / "states").symlink_to(tmp_path)
    tree = booking.run()
    assert (tree.status, tree.leaves[0].reward) == ("completed", 1.0)
    assert nodes_with_a_state(tree) == set()
    assert not (tmp_path / "sha256").exists(), "a link was followed"
    unavailable = [each.node for each in booking.events if each.kind == "state_unavailable"]
    assert unavailable == [tree.root.id, tree.leaves[0].id]


def test_reading_a_state_does_not_use_the_time_of_the_agent(booking):
    """The query of the root takes longer than the whole execute deadline."""
    made = booking._environment

    def environment():
        world = made()
        query = world.query

        async def slow() -> EnvState:
            await asyncio.sleep(1.2)
            world.query = query
            return await query()

        world.query = slow
        return world

    booking._environment = environment
    booking.deadlines(execute=1)
    tree = booking.run()
    assert (tree.status, tree.leaves[0].error) == ("completed", None)
    assert tree.root.state_ref is not None


STATES = st.builds(
    EnvState, files=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
)


@given(states=st.lists(STATES, max_size=5))
def test_a_state_that_was_written_is_read_back(states, tmp_path_factory):
    directory = tmp_path_factory.mktemp("rollout")
    writer = StateWriter(directory)
    refs = [writer.write(state.model_dump_json().encode()) for state in states]
    assert [read_state(directory, ref) for ref in refs] == states
    names = {path.name for path in directory.rglob("*") if path.is_file()}
    assert len(names) == len({ref.digest for ref in refs})


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, StateRef, Path]:
    ref = StateWriter(tmp_path).write(b'{"databases":{},"files":{}}')
    return tmp_path, ref, tmp_path / ref.path


def test_a_changed_or_missing_file_is_refused(written):
    directory, ref, file = written
    for content in (b"", b'{"databases":{},"files":{"a":"b"}}', file.read_bytes() + b" "):
        file.write_bytes(content)
        with pytest.raises(StoreError, match="changed"):
            read_state(directory, ref)
    file.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        read_state(directory, ref)


def test_links_and_pipes_are_not_read(written, tmp_path_factory):
    directory, ref, file = written
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "state.json"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot be read"):
        read_state(directory, ref)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StoreError, match="not a regular file"):
        read_state(directory, ref)
    folder = file.parent.rename(elsewhere.parent / "sha256")
    file.parent.symlink_to(folder)
    with pytest.raises(StoreError, match="cannot be read"):
        read_state(directory, ref)


def test_the_path_in_a_log_is_not_followed(written):
    directory, ref, _ = written
    elsewhere = ref.model_copy(update={"path": "/etc/passwd"})
    assert read_state(directory, elsewhere) == EnvState()


def test_a_configuration_of_version_0_8_has_a_bool():
    words = [
        RolloutConfig.model_validate({"capture_state": v}).capture_state for v in (True, False)
    ]
    assert words == ["forks", "none"]
    with pytest.raises(ValidationError, match="capture_state"):
        RolloutConfig.model_validate({"capture_state": "always"})


def test_the_tree_file_has_the_digests_and_no_states(booking):
    tree = booking.run()
    nodes = json.loads((booking.directory / "tree.json").read_bytes())["nodes"]
    assert nodes[0]["state"] == tree.root.state_ref.model_dump()
    assert all("env_state" not in node for node in nodes)
