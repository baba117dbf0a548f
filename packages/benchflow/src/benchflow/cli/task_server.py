"""`bench tasks serve`: our tasks as a server of another framework's protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchflow_contracts import UsageError
from benchflow_engine.flags import RunFlags
from benchflow_kernel import Registry
from cyclopts import Parameter
from cyclopts.validators import Number

from .flags import DEFAULT_JOBS, JobsDir, Json
from .foreign_tasks import explain_refusals
from .output import note, print_json
from .rollout_flags import Run, configuration, origins
from .serve import serve_package

if TYPE_CHECKING:
    from benchflow_serve import RunningTaskServer
    from benchflow_tool_sessions import TaskServer, TaskServerSettings, TaskSet

_GROUP = "benchflow.task_servers"


@dataclass(frozen=True, slots=True)
class AddressFlags:
    """Where a server listens, and who may send requests."""

    host: str = "127.0.0.1"
    """Address to listen on. An address other than the loopback needs --token-file."""
    port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))] = None
    """Port; 0 takes a free one (default: the usual one of the protocol)."""
    token_file: Path | None = None
    """File of tokens, one a line, as text or as `sha256:HEX` (default: $BENCHFLOW_SERVE_TOKEN,
    then no token). ORS sends a token as `X-API-Key`, OpenEnv as `Authorization: Bearer`."""
    allowed_host: tuple[str, ...] = ()
    """Name that clients use for this server in the `Host` header. Repeatable; needed with
    --host 0.0.0.0. The files for clients have the first one."""
    allow_remote: bool = False
    """Permission for other machines to reach a protocol without tokens, such as NeMo Gym's."""


@dataclass(frozen=True, slots=True)
class SessionFlags:
    """Limits of sessions."""

    sessions: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Sessions or rollouts that are open at one time (default: 64; nemo-gym-agent: 4)."""
    idle: Annotated[float, Parameter(validator=Number(gt=0))] = 900
    """Seconds without a call until a session is deleted."""
    calls: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Tool calls of a session, which is graded then (default: no limit)."""
    fork_limit: Annotated[int, Parameter(validator=Number(gte=1))] = 1
    """Sessions that one rollout may have by forks. A client forks a session by a request to
    /benchflow/fork; with 1, none may be forked."""
    call_sec: Annotated[float, Parameter(validator=Number(gt=0))] = 600
    """Seconds of a tool call."""


Address = Annotated[AddressFlags, Parameter(name="*")]
Sessions = Annotated[SessionFlags, Parameter(name="*")]


def serve_tasks(
    *sources: str,
    protocol: str,
    options: Run = RunFlags(),
    address: Address = AddressFlags(),
    sessions: Sessions = SessionFlags(),
    split: str | None = None,
    client_files: Path | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Serve tasks to clients and trainers of another framework, in its protocol.

    A session is a rollout with a sandbox of its own, recorded and graded as any other. With `ors`,
    `openenv` and `nemo-gym` the client acts; with `nemo-gym-agent` the agent of --agent does.
    Ctrl-C ends all sessions and deletes their sandboxes. `bench doctor` lists the protocols.

    Examples:
        bench tasks serve benchmarks/clawsbench/tasks --protocol ors
        bench tasks serve claws=TASKS other=MORE-TASKS --protocol ors --host 0.0.0.0 --token-file t
        bench tasks serve TASKS --protocol openenv --sandbox docker --sessions 16
        bench tasks serve TASKS --protocol nemo-gym --client-files nemo
        bench tasks serve TASKS --protocol nemo-gym-agent --agent policy --model M --base-url URL

    Args:
        sources: Tasks as in `bench tasks list`, each as SOURCE or NAME=SOURCE. Directories `train`,
            `validation` and `test` in a source are its splits.
        protocol: Protocol: ors, openenv, nemo-gym, nemo-gym-agent, or one of another package.
        options: Options of each rollout.
        split: Split that is served (default: all).
        client_files: Directory for files that clients need: the rows and the configuration of
            NeMo Gym.
        jobs_dir: Directory of the records.
    """
    server = _server(protocol)
    if server.runs_agents and sessions.fork_limit > 1:
        raise UsageError(f"{protocol!r} has no sessions to fork", hint="leave out --fork-limit")
    settings = _settings(sources, options, split, jobs_dir, address, sessions)
    most = sessions.sessions or server.most

    def show(running: "RunningTaskServer") -> None:
        _show(running, protocol, settings, json=json)

    package = serve_package()
    package.serve_tasks(
        server,
        replace(settings, most=most),
        package.TaskServerAddress(
            address.host, address.port, address.token_file, address.allow_remote
        ),
        client_files=client_files,
        on_ready=show,
    )


def _server(protocol: str) -> "TaskServer":
    # An unknown protocol is reported first, with its extra.
    Registry().resolve(_GROUP, protocol)
    serve_package()
    from benchflow_tool_sessions import task_server

    server = task_server(protocol)
    agent = origins().get("agent.name")
    if not server.runs_agents and agent is not None and agent.kind == "flag":
        raise UsageError(
            f"clients of {protocol!r} act themselves, so it does not use --agent",
            hint="leave out --agent",
        )
    return server


def _settings(
    sources: Sequence[str],
    options: RunFlags,
    split: str | None,
    jobs_dir: Path,
    address: AddressFlags,
    sessions: SessionFlags,
) -> "TaskServerSettings":
    from benchflow_tool_sessions import SessionLimits, TaskServerSettings, TaskSet

    config = configuration(options)
    sets = [TaskSet.read(each, config.adapter_options(), split=split) for each in sources]
    _explain(sets)
    return TaskServerSettings(
        tuple(sets),
        config,
        jobs_dir=jobs_dir,
        limits=SessionLimits(
            calls=sessions.calls, call_sec=sessions.call_sec, sessions=sessions.fork_limit
        ),
        idle_sec=sessions.idle,
        hosts=address.allowed_host,
    )


def _explain(sets: "Sequence[TaskSet]") -> None:
    for each in sets:
        for task in each.refused:
            explain_refusals(task, before="not served: ")


def _show(
    running: "RunningTaskServer", protocol: str, settings: "TaskServerSettings", *, json: bool
) -> None:
    tasks = {each.name: len(each.all) for each in settings.task_sets}
    if json:
        shown = {"url": running.url, "protocol": protocol, "tasks": tasks}
        access = {"needs_token": running.needs_token, "files": [str(f) for f in running.files]}
        print_json({**shown, **access}, is_line=True)
        return
    names = ", ".join(f"{name} ({size} tasks)" for name, size in tasks.items())
    note(f"{protocol} server of {names}: {running.url}")
    for file in running.files:
        note(f"for clients: {file}")
    note("stop with Ctrl-C")
