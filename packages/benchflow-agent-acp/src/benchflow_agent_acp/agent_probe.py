"""Run an agent in a sandbox and report what its declaration may state."""

import time
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchflow_contracts import (
    AgentError,
    Answer,
    Ask,
    BenchFlowError,
    Door,
    Endpoint,
    Role,
    RolloutIdentity,
    Sandbox,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
    Session,
    SessionSnapshot,
    SnapshotError,
)

from .agent import AcpAgent
from .declaration import ASK_SWITCH
from .fork_probe import ForkProbe
from .probe_report import FACTS, ProbeReport
from .question_probe import ASK_PROMPT, PROBE_FILE, PROBE_TEXT, WRITE_PROMPT

NUDGE = "Say in one word what you wrote before."
_SCRIPT_VARIABLE = "BENCHFLOW_SCRIPT"
_SCRIPT_FILE = Path(__file__).parent / "scripts" / "probe.toml"
_SCRIPT_PATH = "/opt/benchflow/probe.toml"


async def probe(
    agent: AcpAgent,
    provider: SandboxProvider,
    *,
    endpoint: Endpoint | None = None,
    model: str | None = None,
    role: Role | None = None,
    log_dir: Path | None = None,
) -> ProbeReport:
    """Start `agent` in a sandbox of `provider` and report what works.

    The probe runs one turn that must write a file, loads the session in a new process after a
    kill, makes the agent ask a question, and forks the agent at each fidelity of the provider. A
    failure of the agent is a result in the report. A failure of the sandbox is raised, but during
    a fork it is a result.
    """
    role = (role or Role()).model_copy(update={"agent": agent.name, "model": model})
    run = _Probe(agent, role, log_dir)
    try:
        bundles = (await agent.needs(role)).bundles
    except AgentError as error:
        run.results["start"] = str(error)
        return run.report()
    doors = () if endpoint is None else (Door.to(endpoint),)
    spec = SandboxSpec(bundles=bundles, network="model-only" if doors else "none", doors=doors)
    sandbox = await provider.create(spec, identity=RolloutIdentity(purpose=f"probe {agent.name}"))
    try:
        await run.upload_script(sandbox)
        await run.collect(sandbox)
    finally:
        await sandbox.teardown()
    if run.report().ok:
        await run.fork(provider, spec)
    return run.report()


class _Probe:
    """One run of the probe, and its results so far."""

    def __init__(self, agent: AcpAgent, role: Role, log_dir: Path | None) -> None:
        self.results: dict[str, str] = {}
        self._agent = agent
        self._role = role
        self._log_dir = log_dir
        self._timings: dict[str, float] = {}
        self._asks: list[Ask] = []
        self._script: tuple[Path, str] | None = None

    def report(self) -> ProbeReport:
        return ProbeReport(
            agent=self._agent.name,
            version=self._agent.decl.version,
            date=datetime.now(UTC).date().isoformat(),
            results={fact: self.results[fact] for fact in FACTS if fact in self.results},
            timings_sec=self._timings,
        )

    async def upload_script(self, sandbox: Sandbox) -> None:
        """Upload a script that does what the prompts ask, if the agent follows a script."""
        decl = self._agent.decl
        follows_script = decl.distribution.builtin is not None and decl.model.wire == "none"
        if not follows_script or _SCRIPT_VARIABLE in self._role.env:
            return
        self._script = (_SCRIPT_FILE, _SCRIPT_PATH)
        await sandbox.upload(*self._script)
        env = {**self._role.env, _SCRIPT_VARIABLE: _SCRIPT_PATH}
        self._role = self._role.model_copy(update={"env": env})

    async def collect(self, sandbox: Sandbox) -> None:
        """Collect facts until a failure makes the rest impossible."""
        snapshot: SessionSnapshot | None = None
        async with AsyncExitStack() as stack:
            with self._fact("start"):
                session = await self._connect(sandbox, "write")
                stack.push_async_callback(session.aclose)
                with self._fact("write"):
                    await session.prompt(WRITE_PROMPT)
                    await self._check_file(sandbox)
                if self._agent.decl.session.snapshot != "none":
                    with self._fact("load_after_kill"):
                        snapshot = await session.snapshot()
        if snapshot is not None:
            with self._fact("load_after_kill"):
                await self._talk(sandbox, "load", NUDGE, resume=snapshot)
        if self.results.get("start") == "ok" and self._agent.capabilities().ask_user:
            with self._fact("ask"):
                await self._ask(sandbox)

    async def fork(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """Fork the agent in every way that its declaration and the provider allow."""
        levels = (await provider.capabilities()).snapshot_levels
        decl = self._agent.decl
        forks = ForkProbe(self._agent, provider, spec, self._role, script=self._script)
        asks = decl.ask.channel != "none" or decl.ask.mcp
        runs = {
            "state": (forks.state, "filesystem" in levels and decl.session.snapshot != "none"),
            "live": (forks.live, "live" in levels),
            "live-ask": (forks.live_ask, "live" in levels and asks),
            "replay-ask": (forks.replay_ask, "filesystem" in levels and asks),
        }
        for name, (run, possible) in runs.items():
            if possible:
                with self._fact(name, SandboxError):
                    await run()

    @contextmanager
    def _fact(self, name: str, *more: type[BenchFlowError]) -> Generator[None]:
        failures: tuple[type[BenchFlowError], ...] = (AgentError, SnapshotError, *more)
        started = time.monotonic()
        try:
            yield
        except failures as error:
            self.results[name] = str(error)
        else:
            self.results[name] = "ok"
        self._timings[name] = round(time.monotonic() - started, 3)

    async def _connect(
        self,
        sandbox: Sandbox,
        part: str,
        *,
        role: Role | None = None,
        resume: SessionSnapshot | None = None,
    ) -> Session:
        logs = self._log_dir / part if self._log_dir else None
        role = role or self._role
        session = await self._agent.connect(sandbox, role, resume=resume, log_dir=logs)
        session.on_ask_user(self._answer)
        return session

    async def _talk(
        self,
        sandbox: Sandbox,
        part: str,
        text: str,
        *,
        role: Role | None = None,
        resume: SessionSnapshot | None = None,
    ) -> None:
        session = await self._connect(sandbox, part, role=role, resume=resume)
        try:
            await session.prompt(text)
        finally:
            await session.aclose()

    async def _check_file(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["cat", "--", PROBE_FILE], timeout=30)
        if PROBE_TEXT not in result.stdout:
            raise AgentError(f"the turn ended, but {PROBE_FILE!r} does not contain {PROBE_TEXT!r}")

    async def _ask(self, sandbox: Sandbox) -> None:
        self._asks.clear()
        env = {**self._role.env, ASK_SWITCH: "1"}
        role = self._role.model_copy(update={"env": env})
        await self._talk(sandbox, "ask", ASK_PROMPT, role=role)
        if not any(ask.kind == "question" for ask in self._asks):
            raise AgentError("the turn ended without a question")

    async def _answer(self, ask: Ask) -> Answer:
        self._asks.append(ask)
        options = ask.questions[0].options
        if len(ask.questions) == 1 and options:
            return Answer.choose(ask, options[0].id)
        return Answer(outcome="declined")
