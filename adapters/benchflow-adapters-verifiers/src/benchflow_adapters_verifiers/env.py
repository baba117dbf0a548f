# mypy: disable-error-code="import-not-found,misc,no-any-unimported,unused-ignore"
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""The environment of verifiers' `eval`: episodes of `bench serve`, or a harness in a sandbox.

With `serve`, the server runs the rollout with an agent of BenchFlow. Without, the harness of the
configuration runs in a sandbox here. A BenchFlow task has its own world and is graded by its own
verifier. A task of another taskset runs in a plain sandbox and is graded by that taskset.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchflow_contracts import (
    AgentError,
    Bundle,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    UsageError,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import RunResult, run_in
from benchflow_kernel import Planes
from verifiers.v1.agent import Agents
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.env import Env
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.runtimes import DockerConfig
from verifiers.v1.serve import EnvClient
from verifiers.v1.task import Task
from verifiers.v1.trace import Error, Trace, TraceTask

from .harness_agent import HarnessAgent
from .port_relays import PortRelays
from .runtime import SandboxRuntime
from .taskset import BenchFlowTask

_START_SEC = 60.0
_ENVIRONMENT = "/opt/verifiers"
_AGENT = "benchflow_adapters_verifiers.harness_agent:harness_agent"


class BenchFlowEnvConfig(EnvConfig):
    """Where episodes run."""

    serve: str = ""
    """The ZMQ address of `bench serve --zmq`. Empty: the harness runs in a sandbox here."""
    sandbox: str = "local"
    """The sandbox provider, without `serve`."""
    network: Literal["model-only", "public"] = "public"
    """The network of a sandbox for tasks of other tasksets. BenchFlow tasks set their own."""
    environment: Path | None = None
    """A virtual environment of this machine that is read-only in the sandbox, at `/opt/verifiers`.
    Its Python, which the image must have at the same path, runs the programs of harnesses. Without
    it, uv installs what they need."""
    # The runtime is never made: the agent borrows a sandbox. Its type only has to be a local one.
    agent: AgentConfig = AgentConfig(runtime=DockerConfig())
    """The seat of the harness, without `serve`."""


class BenchFlowEnv(Env[BenchFlowEnvConfig]):
    """Runs each episode on a server or in a sandbox of BenchFlow."""

    _client: Any = None
    """The `EnvClient` of the server, with `serve`."""

    async def start(self) -> None:
        """Connect to the server.

        Raises:
            TimeoutError: No server answers at the address.
        """
        if self.config.serve:
            self._client = client = EnvClient(self.config.serve)
            await client.wait_for_server_startup(timeout=_START_SEC, interval=0.5)

    async def stop(self) -> None:
        """Disconnect. Runs that were given up are cancelled on the server."""
        if self._client is not None:
            await self._client.close()

    async def run_episode(
        self,
        task: Task,
        ctx: ModelContext,
        *,
        on_trace: Callable[[Trace], None] | None = None,
        on_discard: Callable[[Trace], None] | None = None,
    ) -> Episode:
        """Run one episode: with `serve`, one tree, with one trace for each of its leaves.

        A failure of the server is an episode that is not `ok`, and never a reward.
        """
        if self._client is None:
            episode: Episode = await super().run_episode(
                task, ctx, on_trace=on_trace, on_discard=on_discard
            )
            return episode
        try:
            return await self._client.run(
                ctx.client, ctx.model, ctx.sampling, task.data.model_dump(mode="json")
            )
        except RuntimeError as error:
            stamp = TraceTask(
                type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
            )
            failed = Error(type=type(error).__name__, message=str(error))
            return Episode(env=EnvInfo(id=self.config.env_id), task=stamp, errors=[failed])

    async def run(self, task: Task, agents: Agents) -> None:
        """Run the harness of the configuration on a task in a sandbox.

        Raises:
            AgentError: The harness did not run, or BenchFlow could not grade its work.
        """
        config = run_config(None, sandbox=self.config.sandbox, agent_import_path=_AGENT)
        async with PortRelays() as relays, open_provider(config) as provider:
            if isinstance(task, BenchFlowTask):
                await self._run_ours(config, provider, relays, task, agents)
                return
            spec = SandboxSpec(
                image=task.data.image,
                workdir=task.data.workdir or "/workspace",
                network=self._network(task),
                doors=relays.doors,
                bundles=self._bundles(),
                ports=(8000,),
            )
            sandbox = await provider.create(spec)
            try:
                async with self._runtime(sandbox, relays) as runtime:
                    await agents.agent.run(task, runtime=runtime)
            finally:
                await sandbox.teardown()

    async def _run_ours(
        self,
        config: RunConfig,
        provider: SandboxProvider,
        relays: PortRelays,
        task: BenchFlowTask,
        agents: Agents,
    ) -> None:
        if task.source is None or task.source.steps:
            raise UsageError(
                f"the task {task.key!r} needs a server",
                hint="set --env.serve, or for a task with one prompt --env.taskset.directory",
            )
        traces: list[Trace] = []

        async def harness(sandbox: Sandbox, prompt: str) -> str:
            asked = task if prompt == task.data.prompt else task.with_data(prompt=prompt)
            async with self._runtime(sandbox, relays) as runtime:
                trace = await agents.agent.run(asked, runtime=runtime)
            traces.append(trace)
            if not trace.ok:
                raise AgentError(f"the harness failed: {trace.errors[-1].message[-500:]}")
            return str(trace.last_reply)

        agent = HarnessAgent(harness, doors=relays.doors, bundles=self._bundles())

        def prepare(planes: Planes) -> Planes:
            return replace(planes, agents={config.agent.label: agent})

        result = await run_in(provider, task.source, config, prepare=prepare)
        _record(result, traces)

    @asynccontextmanager
    async def _runtime(
        self, sandbox: Sandbox, relays: PortRelays
    ) -> AsyncGenerator[SandboxRuntime, None]:
        place = self.config.environment
        python = "" if place is None else f"{_ENVIRONMENT}/bin/python"
        runtime = SandboxRuntime(sandbox, relays, python)
        try:
            yield runtime
        finally:
            await runtime.stop()

    def _bundles(self) -> tuple[Bundle, ...]:
        place = self.config.environment
        if place is None:
            return ()
        path = str(place.absolute())
        key = hashlib.sha256(path.encode()).hexdigest()
        return (Bundle(source=path, target=_ENVIRONMENT, key=f"verifiers-{key[:16]}"),)

    def _network(self, task: Task) -> Literal["model-only", "public"]:
        allow, block = task.data.network_allow, task.data.network_block
        if allow == ["*"] and not block:
            network: Literal["model-only", "public"] = self.config.network
            return network
        raise UsageError(
            f"the task {task.data.idx!r} limits its network to {allow}, without {block}",
            hint="BenchFlow's runtime has no network policy of verifiers",
        )


def _record(result: RunResult, traces: list[Trace]) -> None:
    """Write the verdict of BenchFlow into the trace. Without a verdict, the episode fails."""
    leaf = result.tree.leaves[0]
    verdict = leaf.results.get("reward")
    if not traces or verdict is None or verdict.reward is None:
        error = verdict.error if verdict is not None else str(result.record.error)
        raise AgentError(f"the work of the harness has no reward: {error}")
    trace = traces[0]
    trace.record_reward("reward", verdict.reward, 1.0)
    for name, value in verdict.items.items():
        trace.record_metric(name, value)
    trace.info["benchflow"] = {"integrity": verdict.integrity, "grading": verdict.grading}
