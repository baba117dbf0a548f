"""The invariants of a fork on real boxes, with ClawsBench: live, by state, by replay."""

import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    Fidelity,
    Role,
    RolloutNode,
    RolloutTree,
    SandboxCapabilities,
    SandboxImage,
)
from benchflow_engine.flags import run_config
from benchflow_engine.planes import assemble
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    BranchBudget,
    BranchPolicy,
    GroupBranch,
    RolloutConfig,
    Scene,
    Turn,
    ValueBranch,
    diff_states,
    load_task,
    run_rollout,
    trajectories,
)
from benchflow_sandbox_local import LocalProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASK = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks" / "book-the-review-room"
MAPLE = "room-maple@harborlight.example"
WEEK = "--start 2026-03-16T00:00:00Z --end 2026-03-21T00:00:00Z"

SCRIPT = (
    f"""
[[turn]]
[[turn.do]]
run = "echo before > /workspace/notes; claw-gcal list --calendar cal-1 {WEEK} --text review | wc -l"
[[turn.do]]
say = "I have looked."

[[turn]]
[[turn.do]]
ask = "Which review with Dana shall I book the Maple room for?"
id = "review"
options = [
    {{ id = "evt-10", label = "tuesday" }},
    {{ id = "evt-11", label = "wednesday" }},
    {{ id = "evt-12", label = "thursday" }},
]
[[turn.do]]
run = "cat /workspace/notes; claw-gcal list --calendar cal-1 {WEEK} | grep -c {MAPLE} || true"
"""
    + "".join(
        f"""
[[turn.do]]
when = {{ review = "{event}" }}
run = "echo {event} >> /workspace/notes; claw-gcal update {event} --add-attendee {MAPLE}"
"""
        for event in ("evt-10", "evt-11", "evt-12")
    )
    + """
[[turn.do]]
run = "cat /workspace/notes"

[[turn]]
[[turn.do]]
run = "cat /workspace/notes; echo after >> /workspace/notes"
[[turn.do]]
say = "Done."
"""
)


class Watched(LocalProvider):
    """A local provider that goes no higher than a fidelity, and tells what it forgot."""

    def __init__(self, store: Path, *, live: bool) -> None:
        super().__init__(store=store)
        self.forgotten: list[str] = []
        self._live = live

    async def capabilities(self) -> SandboxCapabilities:
        found = await super().capabilities()
        if self._live:
            return found
        update = {"snapshot_levels": frozenset({"filesystem"}), "live_engine": None}
        return found.model_copy(update=update)

    async def discard(self, image: SandboxImage) -> None:
        await super().discard(image)
        self.forgotten.append(image.ref)


@dataclass
class Ran:
    tree: RolloutTree
    sealed: list[str]
    forgotten: list[str]
    boxes_left: int


def run(
    folder: Path,
    policy: BranchPolicy | None,
    *,
    live: bool = False,
    turns: int = 2,
    environment: Any = None,
) -> Ran:
    """Run the script in real boxes; the user means the review on Wednesday."""
    task_dir = folder / "tasks" / TASK.name
    shutil.copytree(TASK, task_dir)
    shutil.copy(TASK.parents[1] / "environment.toml", folder / "environment.toml")
    shutil.copytree(TASK.parents[1] / "images", folder / "images", symlinks=True)
    (task_dir / "solution" / "script.toml").write_text(SCRIPT)
    task = load_task(task_dir)
    prompts = (Turn(), Turn(prompt="now book"), Turn(prompt="and tell"))[:turns]
    config = RolloutConfig(
        scenes=(Scene(roles=(Role(agent="oracle"),), turns=prompts),), branch=policy
    )
    events: list[Any] = []

    async def main() -> Ran:
        async with Watched(folder / "store", live=live) as provider:
            planes = assemble(run_config(), task, provider)
            if environment is not None:
                planes = environment(planes)
            tree = await run_rollout(
                task, config, planes, directory=folder / "rollout", subscribers=[events.append]
            )
            left = [record async for record in provider.sandboxes()]
        sealed = [event.ref for event in events if event.kind == "checkpointed"]
        return Ran(tree, sealed, provider.forgotten, len(left))

    return asyncio.run(main())


POLICIES: Mapping[Fidelity, BranchPolicy] = {
    "live": AskUserBranch(require="live", budget=BranchBudget(concurrency=3)),
    "state": GroupBranch(n=3, at=1, require="state", budget=BranchBudget(concurrency=3)),
    "replay": AskUserBranch(budget=BranchBudget(concurrency=3)),
}


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("linear"), None)


@pytest.fixture(scope="module")
def live(criu: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where this machine cannot be forked live."""
    store = tmp_path_factory.mktemp("probe")

    async def probe() -> SandboxCapabilities:
        async with LocalProvider(store=store) as provider:
            return await provider.capabilities()

    found = asyncio.run(probe())
    if "live" not in found.snapshot_levels:
        pytest.skip(found.notes["live"])


@pytest.fixture(scope="module", params=["live", "state", "replay"])
def forked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    fidelity: Fidelity = request.param
    if fidelity == "live":
        request.getfixturevalue("live")
    folder = tmp_path_factory.mktemp(fidelity)
    return fidelity, run(folder, POLICIES[fidelity], live=fidelity == "live")


def observed(node: RolloutNode) -> list[str]:
    return [seen.content for step in node.steps for seen in step.observations]


def booked(node: RolloutNode) -> str:
    """Which event the leaf's own branch booked."""
    return next(text.split()[-1] for text in reversed(observed(node)) if "evt-" in text)


def fork_of(tree: RolloutTree) -> RolloutNode:
    return next(n for n in tree.nodes if n.branch is not None and n.branch.children)


def test_the_fork_has_the_fidelity_that_it_was_to_have(forked: tuple[Fidelity, Ran]) -> None:
    fidelity, ran = forked
    assert ran.tree.status == "completed", ran.tree.error
    assert ran.tree.error is None
    assert fork_of(ran.tree).branch.fidelity == fidelity
    # The task's user gives one of the three answers.
    asks = fork_of(ran.tree).branch.policy == "ask-user"
    assert fork_of(ran.tree).value.n == (1 if asks else 3)
    assert sum(leaf.reward is not None for leaf in ran.tree.leaves) == 3


def test_a_zero_delta_branch_earns_what_the_linear_run_earns(
    forked: tuple[Fidelity, Ran], linear: Ran
) -> None:
    fidelity, ran = forked
    earned = linear.tree.leaves[0].reward
    assert earned == 1.0
    same = [leaf for leaf in ran.tree.leaves if booked(leaf) == "evt-11"]
    assert len(same) == (3 if fidelity == "state" else 1)
    assert [leaf.reward for leaf in same] == [earned] * len(same)
    final = linear.tree.leaves[0].env_state
    assert all(diff_states(final, leaf.env_state).empty for leaf in same)


def test_no_file_row_or_answer_of_a_sibling_is_seen(
    forked: tuple[Fidelity, Ran], linear: Ran
) -> None:
    _, ran = forked
    (alone,) = linear.tree.leaves
    before = next(text for text in observed(alone) if text.startswith("before"))
    for leaf in ran.tree.leaves:
        assert before in observed(leaf)
        assert observed(leaf)[-1].split() == ["before", booked(leaf)]
        assert rooms(leaf) == rooms(alone)


def rooms(leaf: RolloutNode) -> int:
    """How often the Maple room is booked in the leaf's own calendar."""
    tables = leaf.env_state.databases["/data/gcal.db"]
    return json.dumps([table.rows for table in tables.values()]).count(MAPLE)


def test_nothing_is_left_of_any_world_or_checkpoint(forked: tuple[Fidelity, Ran]) -> None:
    _, ran = forked
    assert ran.boxes_left == 0
    assert ran.sealed
    assert set(ran.sealed) <= set(ran.forgotten)


@pytest.fixture(params=["live", "state"])
def fidelity(request: pytest.FixtureRequest) -> Fidelity:
    if request.param == "live":
        request.getfixturevalue("live")
    return request.param


def test_a_line_that_is_probed_goes_on_unharmed(
    tmp_path: Path, linear: Ran, fidelity: Fidelity
) -> None:
    live = fidelity == "live"
    ran = run(tmp_path, ValueBranch(n=2, every=2, require="live" if live else None), live=live)
    assert ran.tree.status == "completed", ran.tree.error
    assert len(ran.tree.leaves) == 5
    main = next(leaf for leaf in ran.tree.leaves if all(n.label is None for n in leaf.path))
    assert main.reward == 1.0
    assert diff_states(linear.tree.leaves[0].env_state, main.env_state).empty
    assert observed(main) == observed(linear.tree.leaves[0])
    assert ran.tree.root.value.n == 3


def test_the_best_is_gone_on_from_and_its_state_is_the_final_one(tmp_path: Path) -> None:
    ran = run(tmp_path, BestOfBranch(n=3, at=1), turns=3)
    assert ran.tree.status == "completed", ran.tree.error
    final = max(ran.tree.leaves, key=lambda leaf: len(leaf.steps))
    winner = next(
        node for node in reversed(final.path) if "reward" in node.results and node.children
    )
    assert diff_states(winner.env_state, final.env_state).empty
    assert observed(final)[-1].split() == ["before", "evt-11"]
    assert final.reward == 1.0
    assert len(trajectories(ran.tree)) == 3


def test_an_aborted_checkpoint_leaves_nothing_visible(tmp_path: Path, fidelity: Fidelity) -> None:
    live = fidelity == "live"
    sealed_before = 0 if live else 1  # below live, the first turn's start is sealed as well

    def breaking(planes: Any) -> Any:
        def make() -> Any:
            environment = planes.environment()
            query = environment.query
            reads = []

            async def failing() -> Any:
                reads.append(1)
                if len(reads) > sealed_before:
                    raise EnvironmentError_("the disk broke")
                return await query()

            environment.query = failing
            return environment

        return replace(planes, environment=make)

    policy = GroupBranch(n=2, at=1, require=fidelity)
    ran = run(tmp_path, policy, live=live, environment=breaking)
    assert ran.tree.status == "failed"
    assert "the disk broke" in ran.tree.error.message
    assert len(ran.sealed) == sealed_before
    assert set(ran.sealed) == set(ran.forgotten)
    assert ran.boxes_left == 0
