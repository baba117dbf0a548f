"""The ACP handshake: from a new process to a session that is ready for a prompt."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, TypeVar

from acp.meta import AGENT_METHODS, PROTOCOL_VERSION
from acp.schema import (
    ClientCapabilities,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    FileSystemCapabilities,
    ForkSessionRequest,
    ForkSessionResponse,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    LoadSessionRequest,
    LoadSessionResponse,
    NewSessionRequest,
    NewSessionResponse,
    ResumeSessionRequest,
    SessionModeState,
)
from benchflow_contracts import (
    AgentError,
    AgentProtocolError,
    AgentTimeoutError,
    Role,
    SessionSnapshot,
)
from benchflow_contracts.pausing import running_timeout
from pydantic import BaseModel, ValidationError

from .connection import Connection
from .declaration import AgentDecl, wants_asks
from .tool_servers import servers_on_wire

_Reply = TypeVar("_Reply", bound=BaseModel)


class Handshake:
    """The handshake with one agent process."""

    def __init__(self, decl: AgentDecl, connection: Connection, role: Role) -> None:
        self._decl = decl
        self._connection = connection
        self._role = role
        self._config: dict[str, str | bool] = {}
        self.initialized: InitializeResponse | None = None

    async def open(self, cwd: str, resume: SessionSnapshot | None) -> Mapping[str, str | bool]:
        """Run the handshake; return the session options, which a later load must set again.

        Raises:
            AgentError: The agent refused a call, or speaks another protocol version.
            AgentTimeoutError: The agent did not answer within the declared start timeout.
        """
        initialized = await self._initialize()
        if resume is not None and resume.steps == 0:
            # Several agents save nothing before the first prompt, so start a new session.
            resume = None
        if self._decl.auth is not None:
            await self._call("authenticate", {"methodId": self._decl.auth.method_id})
        modes = (
            (await self._new(cwd)).modes
            if resume is None
            else (await self._load(cwd, resume, initialized)).modes
        )
        await self._set_mode(modes, resume)
        await self._set_options(resume)
        return self._config

    async def _initialize(self) -> InitializeResponse:
        services = self._decl.client
        asks = self._decl.ask.channel == "elicitation"
        form = ElicitationCapabilities(form=ElicitationFormCapabilities())
        request = InitializeRequest(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(
                fs=FileSystemCapabilities(read_text_file=services.fs, write_text_file=services.fs),
                terminal=services.terminal,
                elicitation=form if asks else None,
            ),
            client_info=Implementation(name="benchflow", version=version("benchflow-agent-acp")),
        )
        reply = await self._request("initialize", request, InitializeResponse)
        if reply.protocol_version != PROTOCOL_VERSION:
            raise AgentError(
                f"agent {self._decl.id!r} speaks ACP version {reply.protocol_version}, "
                f"not {PROTOCOL_VERSION}"
            )
        self.initialized = reply
        return reply

    async def _new(self, cwd: str) -> NewSessionResponse:
        request = NewSessionRequest(cwd=cwd, mcp_servers=self._mcp_servers())
        reply = await self._request("session_new", request, NewSessionResponse)
        self._connection.state.session_id = reply.session_id
        return reply

    async def _load(
        self, cwd: str, resume: SessionSnapshot, initialized: InitializeResponse
    ) -> LoadSessionResponse | ForkSessionResponse:
        if self._decl.session.snapshot == "none":
            raise AgentError(f"agent {self._decl.id!r} cannot load sessions")
        if self._decl.session.cwd_bound and resume.cwd != cwd:
            raise AgentError(
                f"agent {self._decl.id!r} loads a session only in {resume.cwd!r}, not in {cwd!r}"
            )
        session = self._decl.session
        if session.resume == "fork" and session.fork == "live":
            return await self._fork(cwd, resume.session_id)
        self._connection.state.session_id = resume.session_id
        can_load = initialized.agent_capabilities and initialized.agent_capabilities.load_session
        method, request = (
            ("session_load", LoadSessionRequest) if can_load
            else ("session_resume", ResumeSessionRequest)
        )  # fmt: skip
        body = request(session_id=resume.session_id, cwd=cwd, mcp_servers=self._mcp_servers())
        response = await self._request(method, body, LoadSessionResponse)
        return response if session.resume == "load" else await self._fork(cwd, resume.session_id)

    async def _fork(self, cwd: str, session_id: str) -> ForkSessionResponse:
        body = ForkSessionRequest(session_id=session_id, cwd=cwd, mcp_servers=self._mcp_servers())
        reply = await self._request("session_fork", body, ForkSessionResponse)
        self._connection.state.session_id = reply.session_id
        return reply

    def _mcp_servers(self) -> list[Any]:
        servers = self._role.mcp_servers
        if servers and self._decl.mcp.transport == "none":
            raise AgentError(
                f"agent {self._decl.id!r} does not take tool servers",
                hint="choose another agent for this role, or remove its mcp_servers",
            )
        return servers_on_wire(self._decl.mcp, servers)

    async def _set_mode(
        self, modes: SessionModeState | None, resume: SessionSnapshot | None
    ) -> None:
        mode = self._decl.mode
        if mode is None or (resume and "mode" not in self._decl.session.reapply):
            return
        if self._decl.ask.channel == "permission" and wants_asks(self._role):
            return
        if modes is not None and modes.current_mode_id == mode.unattended:
            return
        await self._call("session_set_mode", {"modeId": mode.unattended})

    async def _set_options(self, resume: SessionSnapshot | None) -> None:
        options: dict[str, str | bool] = dict(resume.config) if resume else {}
        model, role = self._decl.model, self._role
        if model.config_option and role.model:
            options[model.config_option] = role.model
        if model.effort_option and role.reasoning_effort:
            options[model.effort_option] = role.reasoning_effort
        if wants_asks(role):
            options |= self._decl.ask.enable
        self._config = options
        if resume is not None and "config" not in self._decl.session.reapply:
            return
        for option, value in options.items():
            params: dict[str, Any] = {"configId": option, "value": value}
            if isinstance(value, bool):
                params["type"] = "boolean"
            await self._call("session_set_config_option", params)

    async def _request(self, method: str, request: BaseModel, reply: type[_Reply]) -> _Reply:
        params = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        result = await self._call(method, params)
        try:
            return reply.model_validate(result)
        except ValidationError as error:
            raise AgentProtocolError(
                f"agent {self._decl.id!r} sent an invalid reply to {method!r}: {error!s:.300}"
            ) from error

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        name = AGENT_METHODS[method]
        if method.startswith("session_set"):
            params = {"sessionId": self._connection.state.session_id, **params}
        timeout = self._decl.launch.start_timeout_sec
        try:
            async with running_timeout(timeout):
                return await self._connection.call(name, params)
        except TimeoutError as error:
            raise AgentTimeoutError(
                f"agent {self._decl.id!r} did not answer {name!r} within {timeout:g} s"
            ) from error
