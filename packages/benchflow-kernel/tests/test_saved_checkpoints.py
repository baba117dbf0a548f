"""Checkpoints that outlive their rollout, and going on from them."""

import asyncio
import json

import pytest
from benchflow_contracts import (
    Role,
    SnapshotError,
    StoreError,
)
from benchflow_kernel import (
    AskUserBranch,
    GroupBranch,
    Keep,
    ModelConfig,
    RolloutConfig,
    Scene,
    Turn,
    continue_from,
    read_manifest,
    saved_checkpoints,
)
from benchflow_testing.fakes import (
    Act,
    FakeAgent,
    FakeModelGateway,
    FakeSandboxProvider,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)

DAY = ask_with_options("which day?", "monday", "friday")


def book(word) -> Act:
    async def run(session):
        await FakeWorld(session.sandbox).insert("events", (word,))
        return "ok"

    return Act(run, title=f"book {word}")


def chosen(answer):
    return answer.selected["q1"][0]


def rows(node):
    return [row[0] for row in node.env_state.databases["/state"]["events"].rows]


def scenes(*agents, prompts=("one", "two", "three"), **role):
    turns = tuple(Turn(prompt=prompt) for prompt in prompts)
    return (Scene(roles=(Role(agent=agents[0] if agents else "fake", **role),), turns=turns),)


@pytest.fixture
def kept(rig):
    """Three turns, the second of which asks; every turn's start is kept."""
    rig.environment_options["tables"] = {"events": []}
    rig.config.update(scenes=scenes(), keep=Keep(which="all"))
    rig.agent = FakeAgent(
        [
            [Say("a"), book("first")],
            [Say("b"), Pose(DAY, lambda a: [book(chosen(a)), Say("booked")])],
            [Say("c"), book("third")],
        ]
    )
    return rig


def go_on(rig, path, **options):
    """Go on from `path` in what stands for another process."""
    config = RolloutConfig(**{**rig.config, "keep": Keep(), **options.pop("config", {})})
    rig.provider = FakeSandboxProvider(capabilities=asyncio.run(rig.provider.capabilities()))
    rig.again("continued")
    rig.users.clear()
    rig.environments.clear()

    async def main():
        return await continue_from(
            path,
            rig.task(),
            config,
            rig.planes(),
            rollout_id="r2",
            directory=rig.directory,
            subscribers=[rig.events.append],
            **options,
        )

    tree = asyncio.run(main())
    rig.check_clean()
    rig.check_record(tree)
    return tree


def forked(tree):
    """The node of the only fork."""
    (node,) = [node for node in tree.nodes if node.branch is not None]
    return node


def all_kept(rig):
    return {manifest.turn: path for path, manifest in saved_checkpoints(rig.directory)}


def test_every_turns_start_is_kept_with_what_it_takes_to_go_on(kept):
    kept.run()
    found = list(saved_checkpoints(kept.directory))
    assert [manifest.turn for _, manifest in found] == [0, 1, 2]
    assert [manifest.fidelity for _, manifest in found] == ["state"] * 3
    told = {event.node: event.layers for event in kept.events if event.kind == "checkpointed"}
    assert {m.node: dict(m.layers) for _, m in found} == {n: dict(v) for n, v in told.items()}
    assert all((path / "image").is_dir() for path, _ in found)


def test_the_rest_of_the_schedule_is_run_by_the_session_as_it_was(kept):
    kept.run()
    first = kept.agent.sessions[0]
    path = all_kept(kept)[2]
    before = [one.step.id for one in read_manifest(path).history]
    kept.agent.sessions.clear()
    tree = go_on(kept, path)
    assert tree.status == "completed"
    assert rows(tree.leaves[0])[0] == "first"
    assert rows(tree.leaves[0])[-1] == "third"
    (session,) = kept.agent.sessions
    assert session.id == first.id
    assert session.prompts == ["three"]
    steps = [step.id for step in tree.leaves[0].steps]
    assert steps[: len(before)] == before
    assert len(steps) > len(before)
    assert tree.meta["continued_from"]["rollout_id"] == "r1"


def test_a_prompt_takes_the_place_of_the_rest(kept):
    kept.run()
    path = all_kept(kept)[1]
    kept.agent.sessions.clear()
    tree = go_on(kept, path, prompt="something else")
    assert kept.agent.sessions[0].prompts == ["something else"]
    prompts = [step.prompt for step in tree.leaves[0].steps if step.prompt]
    assert prompts[1:] == ["something else"]


def test_another_agent_begins_anew_in_the_world_as_it_was(kept):
    kept.run()
    path = all_kept(kept)[1]
    other = FakeAgent([[Say("new"), book("other")]], name="other")
    kept.agents = {"other": other}
    tree = go_on(kept, path, prompt="go", config={"scenes": scenes("other", prompts=("x",))})
    assert rows(tree.leaves[0]) == ["first", "other"]
    assert other.sessions[0].prompts == ["go"]
    assert kept.agent.sessions[-1].sandbox not in kept.provider.created


def test_a_group_goes_on_from_the_kept_node(kept):
    kept.run()
    path = all_kept(kept)[2]
    tree = go_on(kept, path, config={"branch": GroupBranch(n=3, at=2)})
    assert len(tree.leaves) == 3
    assert forked(tree).branch.children == 3
    assert all(rows(leaf)[-1] == "third" for leaf in tree.leaves)


@pytest.mark.parametrize("live", [True, False])
def test_an_open_question_is_answered_by_another_user_or_forked_again(kept, live):
    if live:
        kept.live()
    kept.config.update(keep=Keep(which="forks"), branch=AskUserBranch())
    kept.run()
    ((path, manifest),) = saved_checkpoints(kept.directory)
    assert manifest.ask == DAY
    assert manifest.fidelity == ("live" if live else "replay")
    kept.agent.sessions.clear()
    tree = go_on(kept, path)
    assert sorted(child.label for child in forked(tree).children) == ["friday", "monday"]
    assert {rows(leaf)[1] for leaf in tree.leaves} == {"friday", "monday"}
    alone = go_on_alone(kept, path)
    assert len(alone.leaves) == 1
    assert len(rows(alone.leaves[0])) == 3


def go_on_alone(rig, path):
    rig.directory = rig.directory.with_name("alone")
    rig.directory.mkdir()
    (rig.directory / "x").mkdir()
    rig.directory = rig.directory / "x"
    return go_on(rig, path, config={"branch": None})


def test_recorded_model_calls_are_kept_and_served_to_the_continuation(kept):
    kept.gateway = FakeModelGateway()
    kept.config["model"] = ModelConfig(base_url="http://127.0.0.1:9/v1")

    async def think(session):
        line = next(
            one
            for one in kept.gateway.routes
            if one.endpoint == session.sandbox.spec.door("model").endpoint
        )
        call = await line.call({"say": "which"})
        return "replayed" if call.replayed else "new"

    kept.agent._turns[1].insert(0, Act(think))
    kept.config.update(keep=Keep(which="forks"), branch=AskUserBranch())
    kept.run()
    ((path, manifest),) = saved_checkpoints(kept.directory)
    assert [call.request["say"] for call in manifest.calls] == ["which"]
    kept.gateway = FakeModelGateway()
    go_on(kept, path, config={"branch": None})
    assert [call.replayed for call in kept.gateway.routes[0].calls()] == [True]


def test_a_live_checkpoint_ends_the_agent_that_nobody_goes_on_with(kept):
    kept.live()
    kept.config.update(keep=Keep(which="forks"), branch=GroupBranch(n=2, at=1))
    kept.run()
    ((path, manifest),) = saved_checkpoints(kept.directory)
    assert manifest.live
    other = FakeAgent([[Say("new"), book("other")]], name="other")
    kept.agents = {"other": other}
    tree = go_on(
        kept,
        path,
        prompt="go",
        config={"branch": None, "scenes": scenes("other", prompts=("x",))},
    )
    assert rows(tree.leaves[0]) == ["first", "other"]


REFUSED = {
    "another model in a live process": (
        {"config": {"branch": None, "scenes": scenes(model="bigger")}},
        "acts with model None",
    ),
    "another agent within a turn": (
        {"config": {"branch": None, "scenes": scenes("other")}},
        "is within turn",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_gone_on_with_is_refused_before_anything_starts(kept, case):
    options, message = REFUSED[case]
    kept.live()
    at_turn = GroupBranch(n=2, at=1)
    within = case == "another agent within a turn"
    kept.config.update(keep=Keep(which="forks"), branch=AskUserBranch() if within else at_turn)
    kept.run()
    ((path, _),) = saved_checkpoints(kept.directory)
    kept.agents = {"fake": kept.agent, "other": FakeAgent(name="other")}
    tree = go_on(kept, path, **options)
    assert tree.error.boundary == "usage"
    assert message in tree.error.message
    assert "create" not in kept.provider.operations


def test_the_end_of_a_schedule_needs_a_prompt(kept):
    kept.run()
    path = all_kept(kept)[2]
    manifest = json.loads((path / "checkpoint.json").read_text())
    manifest["schedule"] = manifest["schedule"][:2]
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    tree = go_on(kept, path)
    assert tree.error.boundary == "usage"
    assert tree.error.hint == "give a prompt"


def test_no_secret_of_a_role_is_kept(kept):
    kept.config["scenes"] = scenes(env={"TOKEN": "hunter2"})
    kept.run()
    for path, _ in saved_checkpoints(kept.directory):
        assert "hunter2" not in (path / "checkpoint.json").read_text()


def test_the_oldest_are_dropped_over_the_budget(kept):
    async def blob(session):
        session.sandbox.files.put("/workspace/blob", b"x" * 700_000)
        return "ok"

    kept.agent._turns[0].append(Act(blob))
    kept.config["keep"] = Keep(which="all", budget_mb=1)
    kept.run()
    assert [manifest.turn for _, manifest in saved_checkpoints(kept.directory)] == [2]


@pytest.mark.parametrize("fault", [SnapshotError("disk full"), RuntimeError("disk full")])
def test_a_checkpoint_that_cannot_be_kept_is_told_and_does_not_stop_the_rollout(kept, fault):
    kept.provider.faults.fail_on["save"] = fault
    tree = kept.run()
    assert tree.status == "completed"
    assert "was not saved: " in tree.error.message
    assert "disk full" in tree.error.message
    assert list((kept.directory / "checkpoints").iterdir()) == []


def test_a_torn_or_missing_checkpoint_is_refused(kept):
    kept.run()
    path = all_kept(kept)[1]
    (path / "checkpoint.json").write_text("{")
    with pytest.raises(StoreError, match="not a checkpoint"):
        read_manifest(path)
    with pytest.raises(StoreError, match="no saved checkpoint"):
        read_manifest(path / "nowhere")


def test_an_image_that_was_changed_since_is_a_failure_of_the_snapshot(kept):
    kept.run()
    path = all_kept(kept)[1]
    for file in (path / "image").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    tree = go_on(kept, path)
    assert tree.status == "failed"
    assert tree.error.boundary == "snapshot"


def test_nothing_is_kept_unless_it_is_asked_for(kept):
    kept.config["keep"] = Keep()
    kept.run()
    assert not (kept.directory / "checkpoints").exists()
