"""Any tree of policies: clean, folded, within its budget, and every leaf accounted for."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from benchflow_contracts import (
    AgentError,
    Role,
    SnapshotError,
)
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    BranchBudget,
    GroupBranch,
    Scene,
    Turn,
    ValueBranch,
)
from benchflow_testing.fakes import (
    FAKE_CAPABILITIES,
    FAKE_WITHOUT_LIVE,
    Act,
    Crash,
    FakeAgent,
    FakeReward,
    FakeSandboxProvider,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DAY = ask_with_options("which day?", "monday", "friday")

budgets = st.builds(
    BranchBudget,
    max_children=st.integers(2, 4),
    max_depth=st.integers(1, 2),
    max_forks=st.none() | st.integers(1, 3),
    concurrency=st.integers(1, 3),
)


def policies(depth: int):
    then = st.none() if depth == 0 else st.none() | policies(depth - 1)
    rest = {"budget": budgets, "then": then}
    return st.one_of(
        st.builds(AskUserBranch, **rest),
        st.builds(GroupBranch, n=st.integers(2, 3), at=st.integers(0, 1), **rest),
        st.builds(ValueBranch, n=st.just(2), every=st.integers(1, 2), **rest),
        st.builds(BestOfBranch, n=st.integers(2, 3), at=st.integers(0, 1), **rest),
    )


class Draws:
    """What happens in each session: decided by a seed, so that a failure shrinks."""

    def __init__(self, crashes: list[int]) -> None:
        self.crashes = crashes
        self.born = 0
        self.rows = 0

    def moves(self):
        self.born += 1
        if self.born > 1 and self.born in self.crashes:
            return [Crash(AgentError("died"))]
        return [Say("a"), Act(self.write)]

    async def write(self, session):
        self.rows += 1
        await FakeWorld(session.sandbox).insert("events", (self.rows,))
        return "ok"


@pytest.mark.timeout(300)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    policy=policies(1),
    live=st.booleans(),
    carried=st.booleans(),
    crashes=st.lists(st.integers(2, 9), max_size=3),
)
def test_every_tree_is_whole(rig, policy, live, carried, crashes):
    draws = Draws(crashes)
    with TemporaryDirectory() as folder:
        rig.again("any")
        rig.directory = Path(folder) / "rollout"
        rig.environments.clear()
        rig.users.clear()
        rig.provider = FakeSandboxProvider(
            capabilities=FAKE_CAPABILITIES if live else FAKE_WITHOUT_LIVE
        )
        turns = (Turn(prompt="one"), Turn(prompt="two"))
        rig.config.update(scenes=(Scene(roles=(Role(agent="fake"),), turns=turns),), branch=policy)
        rig.environment_options["tables"] = {"events": []}
        rig.rewards = [
            FakeReward(
                lambda node, _: float(len(node.env_state.databases["/state"]["events"].rows))
            )
        ]

        class Drawn(FakeAgent):
            async def connect(self, sandbox, role, *, resume=None, log_dir=None):
                first, second = draws.moves(), draws.moves()
                self._turns = [
                    first,
                    [Pose(DAY, lambda _: second)],
                ]
                return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

        rig.agent = Drawn()
        if not carried:
            rig.agent.faults.fail_on["snapshot"] = SnapshotError("no session files")
        tree = rig.run()
        check(tree, policy)


def check(tree, policy):
    forks = [node for node in tree.nodes if node.branch is not None and node.branch.children]
    for fork in forks:
        labelled = [child for child in fork.children if child.label is not None]
        assert len(labelled) == fork.branch.children
        assert len({child.label for child in labelled}) == len(labelled)
        assert len(fork.children) - len(labelled) <= 1
    if policy.budget.max_forks is not None:
        assert len(forks) <= policy.budget.max_forks
    for leaf in tree.leaves:
        assert leaf.reward is not None or leaf.error is not None or leaf is tree.root
        # A row for each act on the way here, and never one of a sibling's.
        if leaf.env_state is not None:
            rows = leaf.env_state.databases["/state"]["events"].rows
            acts = sum(len(step.tool_calls) for step in leaf.steps)
            assert len(rows) == acts
            assert len(set(rows)) == len(rows)
    scored = [leaf.reward for leaf in tree.leaves if leaf.reward is not None]
    if tree.root.value is not None:
        assert min(scored) <= tree.root.value.mean <= max(scored)
