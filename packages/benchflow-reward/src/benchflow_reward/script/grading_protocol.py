"""Grading protocols: how tests of one kind are placed, run and read."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchflow_contracts import (
    EnvState,
    Evidence,
    ExecResult,
    Grading,
    LiveWorld,
    RewardError,
    RolloutIdentity,
    RolloutNode,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SandboxTimeoutError,
    Task,
    VerifyResult,
)

from benchflow_reward.collect import Collected
from benchflow_reward.errors import VerifierTimeoutError

from .layout import EVIDENCE, TESTS, TOOLS, VERIFIER_LOGS
from .test_log import save_reward_files


@dataclass(frozen=True, slots=True)
class ProtocolRules:
    """How a protocol treats the agent's sandbox and files. The defaults are the strict ones."""

    pins_variables: bool = True
    """Interpreters and shells get pinned variables, and no variable that steers them. Otherwise
    the variables are as the task says, and a fresh sandbox may run its image's entrypoint."""
    grader_paths: tuple[str, ...] = (TESTS, VERIFIER_LOGS, TOOLS, EVIDENCE)
    """The grader's own directories. A change of the agent there is `tampered`."""
    closed_paths: tuple[str, ...] = (TESTS, TOOLS, EVIDENCE, "/logs")
    """No artifact is at or below these paths."""
    artifacts: tuple[str, ...] = ()
    """Artifacts of every task, beside the declared ones."""
    relative_artifacts: bool = False
    """A relative artifact path is below the working directory. Otherwise it is an error."""
    copies_partly: bool = False
    """A hermetic grading omits what cannot be copied, such as links. Otherwise it is refused."""
    restarts_entrypoint: bool = False
    """The image's entrypoint is started again in a twin if something ran in the agent's sandbox,
    and the twin has the host names of the agent's sandbox."""


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """The end of test.sh, and a private copy of its `/logs/verifier` on the host."""

    result: ExecResult
    logs: Path


class GradingProtocol(Protocol):
    """Places the tests, runs them and reads their reward. Has no state.

    An entry point of the group `benchflow.grading_protocols` is such an object; a task names it
    by `[verifier] protocol`.
    """

    @property
    def rules(self) -> ProtocolRules:
        """How the protocol treats the agent's sandbox and files."""
        ...

    async def place_artifacts(self, sandbox: Sandbox, artifacts: Sequence[Collected]) -> None:
        """Put each copied artifact at its own path in a fresh grading sandbox."""
        ...

    async def place_tests(self, target: "GradingTarget", scratch: Path) -> None:
        """Put the tests in. `scratch` is a host directory that ends with the grading."""
        ...

    async def run_tests(self, target: "GradingTarget", scratch: Path) -> ScriptRun:
        """Run test.sh and copy its logs.

        Raises:
            VerifierTimeoutError: It ran longer than the task allows.
        """
        ...

    def read_verdict(self, target: "GradingTarget", run: ScriptRun) -> VerifyResult:
        """Return the verdict. Reads files; raises `RewardFormatError` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node, its task and its live world, and the protocol of its tests."""

    node: RolloutNode
    task: Task
    world: LiveWorld
    protocol: GradingProtocol
    plays_solution: bool
    log_dir: Path | None
    artifacts_dir: Path | None

    @classmethod
    def of(
        cls, node: RolloutNode, evidence: Evidence, protocol: GradingProtocol, *, reward: str
    ) -> "LiveNode":
        """Return the grading context of a reward.

        Raises:
            EvidenceMissingError: There is no live world, or no task.
        """
        return cls(
            node=node,
            task=evidence.require_task(reward),
            world=evidence.require_world(reward),
            protocol=protocol,
            plays_solution=evidence.plays_solution,
            log_dir=evidence.log_dir,
            artifacts_dir=evidence.artifacts_dir,
        )

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox."""
        return self.world.sandbox

    @property
    def provider(self) -> SandboxProvider:
        """The provider that makes grading sandboxes."""
        return self.world.provider

    @property
    def grading_spec(self) -> SandboxSpec:
        """The spec of a grading sandbox."""
        return self.world.grading_spec

    @property
    def identity(self) -> RolloutIdentity:
        """The identity of a grading sandbox."""
        update = {"purpose": "grading", "node": self.node.id}
        return self.world.identity.model_copy(update=update)

    @property
    def env_state(self) -> EnvState | None:
        """The final state of the environment."""
        return self.node.env_state

    @property
    def continues(self) -> bool:
        """Whether the rollout continues in the agent's sandbox."""
        return self.world.continues

    async def ready_for_tests(self) -> None:
        """Let tests that run in the agent's own sandbox reach what the verifier may reach."""
        if self.world.before_tests is not None:
            await self.world.before_tests()


@dataclass(frozen=True, slots=True)
class GradingTarget:
    """A furnished sandbox in which a node is graded."""

    sandbox: Sandbox
    live: LiveNode
    grading: Grading


async def read_verdict(
    target: GradingTarget, run: ScriptRun, meta: Mapping[str, Any]
) -> VerifyResult:
    """Copy the reward files to the record and parse the reward, on the host.

    Raises:
        RewardError: There is no valid reward.
    """
    live = target.live
    await asyncio.to_thread(save_reward_files, run.logs, live.log_dir)
    result = await asyncio.to_thread(live.protocol.read_verdict, target, run)
    how = {"exit_code": run.result.exit_code, "duration_sec": run.result.duration_sec}
    return result.model_copy(update={"meta": {**meta, **how, **result.meta}})


def find_tests(live: LiveNode) -> tuple[Path, ...]:
    """Return the directories of the tests, of which one has the script.

    Raises:
        RewardError: No directory has the script.
    """
    parts = live.task.parts
    if not any((directory / parts.test_script).is_file() for directory in parts.tests):
        raise RewardError(f"task {live.task.id!r} has no tests/{parts.test_script}")
    return parts.tests


def verifier_timeout(live: LiveNode, error: SandboxTimeoutError) -> VerifierTimeoutError:
    """Return the error of tests that `error` ended."""
    seconds = live.task.config.verifier.timeout_sec
    return VerifierTimeoutError(
        f"verifier_timeout: test.sh of {live.task.id!r} ran longer than {seconds:g} s",
        caused_by=error.caused_by,
    )
