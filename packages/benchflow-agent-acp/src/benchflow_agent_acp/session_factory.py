"""Open a session with a process."""

from pathlib import Path

from benchflow_contracts import (
    AgentError,
    Process,
    Role,
    Sandbox,
    SandboxError,
    SessionSnapshot,
    SessionState,
)

from .ask_mcp.joined_process import attach_joined
from .client_state import read_state
from .connection import Connection
from .declaration import AgentDecl
from .handshake import Handshake
from .launch import Launcher
from .limits import WireLimits
from .logs import StderrLog, WireLog
from .render import Values, render
from .services import ClientServices
from .session import AcpSession
from .state import ConnectionState
from .steps import StepBuilder

WIRE_LOG = "acp_wire.jsonl"
STDERR_LOG = "stderr.txt"


class SessionFactory:
    """Makes sessions of one agent in one sandbox."""

    def __init__(
        self,
        decl: AgentDecl,
        sandbox: Sandbox,
        role: Role,
        limits: WireLimits,
        log_dir: Path | None,
    ) -> None:
        self._decl = decl
        self._sandbox = sandbox
        self._role = role
        self._limits = limits
        self._log_dir = log_dir

    async def open(
        self, process: Process, launcher: Launcher, resume: SessionSnapshot | None
    ) -> AcpSession:
        """Run the handshake with a new process. If this raises, the process is dead."""
        connection = self._connection(process)
        try:
            self._check_paths(launcher, resume)
            connection.on_request(self._services(connection).serve)
            cwd = self._sandbox.spec.workdir
            config = await Handshake(self._decl, connection, self._role).open(cwd, resume)
        except BaseException:
            await connection.aclose("the handshake failed")
            raise
        assert launcher.values is not None
        base = self._snapshot_base(launcher.values, dict(config), resume)
        first = resume.steps + 1 if resume else 1
        services = self._services(connection)
        return self._session(connection, services, self._builder(first), base)

    async def attach(self, state: SessionState) -> AcpSession:
        """Continue with a live process that a fork copied into the sandbox."""
        client, connection_state = read_state(state, self._decl.id)
        try:
            process = await attach_joined(
                self._sandbox, state.process_id, partial_line=bytes(connection_state.buffer)
            )
        except SandboxError as error:
            raise AgentError(f"agent {self._decl.id!r} is not in this sandbox: {error}") from error
        connection = self._connection(process, connection_state)
        builder = self._builder()
        builder.restore(client.builder, state.steps)
        services = self._services(connection)
        services.terminals.restore(client.terminals)
        return self._session(connection, services, builder, client.snapshot)

    def _builder(self, first: int = 1) -> StepBuilder:
        return StepBuilder(
            role=self._role.name,
            skills=self._role.skills,
            max_steps=self._limits.steps,
            first=first,
        )

    def _connection(self, process: Process, state: ConnectionState | None = None) -> Connection:
        wire = stderr = None
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            wire, stderr = self._log_dir / WIRE_LOG, self._log_dir / STDERR_LOG
        return Connection(
            process,
            state=state,
            log=WireLog(wire, max_bytes=self._limits.log_bytes),
            stderr=StderrLog(stderr, max_bytes=self._limits.log_stderr_bytes),
            limits=self._limits,
            name=self._decl.id,
        )

    def _services(self, connection: Connection) -> ClientServices:
        return ClientServices(self._sandbox, self._decl.client, connection)

    def _session(
        self,
        connection: Connection,
        services: ClientServices,
        builder: StepBuilder,
        base: SessionSnapshot | None,
    ) -> AcpSession:
        return AcpSession(
            connection,
            services,
            builder,
            agent=self._decl.id,
            role=self._role,
            base=base,
        )

    def _check_paths(self, launcher: Launcher, resume: SessionSnapshot | None) -> None:
        assert launcher.values is not None
        paths = tuple(render(path, launcher.values) for path in self._decl.session.paths)
        same = self._decl.session.snapshot == "same_path_files"
        if resume is not None and same and resume.files != paths:
            raise AgentError(
                f"the session files of agent {self._decl.id!r} contain their own paths: a session "
                f"of {resume.files} cannot be loaded from {paths}",
                hint="fork the whole sandbox, where every path stays the same",
            )

    def _snapshot_base(
        self, values: Values, config: dict[str, str | bool], resume: SessionSnapshot | None
    ) -> SessionSnapshot | None:
        if self._decl.session.snapshot == "none":
            return None
        return SessionSnapshot(
            agent=self._decl.id,
            session_id="",
            cwd=values.workdir,
            files=tuple(render(path, values) for path in self._decl.session.paths),
            config=config,
            steps=resume.steps if resume else 0,
        )
