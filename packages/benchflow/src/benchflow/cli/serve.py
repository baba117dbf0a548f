"""`bench serve`: the rollout service."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from benchflow_contracts import UsageError
from benchflow_engine.flags import RunFlags
from cyclopts import Parameter
from cyclopts.validators import Number

from .flags import Json
from .output import note, print_json
from .rollout_flags import Run, configuration

if TYPE_CHECKING:
    from types import ModuleType

    from benchflow_serve import ServerAddress

_PORT = 8643


@dataclass(frozen=True, slots=True)
class AccessFlags:
    """Who may send requests, and what a request may say."""

    token_file: Path | None = None
    """File of bearer tokens, one a line, as text or as `sha256:HEX` (default:
    $BENCHFLOW_SERVE_TOKEN, then a new token in --dir)."""
    no_auth: bool = False
    """No token; only on the loopback."""
    allowed_host: tuple[str, ...] = ()
    """Name that clients use for this server in the `Host` header. Repeatable."""
    allow_agent: tuple[str, ...] = ()
    """Agent that a request may name, besides --agent. Repeatable."""
    allow_inline_tasks: bool = False
    """Permission for requests to bring their own tasks."""
    allow_jobs: bool = False
    """Permission for drivers on other hosts to run the rollouts of their jobs here."""


@dataclass(frozen=True, slots=True)
class CapFlags:
    """The greatest values that a request may ask for."""

    jobs: Annotated[int, Parameter(validator=Number(gte=0))] = 4
    """Jobs that run at once. Their rollouts share --slots."""
    cap_leaves: Annotated[int, Parameter(validator=Number(gte=1))] = 256
    """Most leaves that the branch policy of a request can have."""
    cap_forks: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Most forks that the branch policy of a request can have (default: no limit)."""
    cap_wall_sec: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """Longest run time of a rollout, in seconds (default: no limit)."""
    cap_tokens: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Most tokens of the model calls of a rollout (default: no limit)."""
    cap_cost_usd: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """Greatest cost of the model calls of a rollout (default: no limit)."""


@dataclass(frozen=True, slots=True)
class RecordFlags:
    """How long results stay, and what a restart does."""

    keep_acknowledged: Annotated[float, Parameter(validator=Number(gte=0))] = 3600
    """Seconds until an acknowledged result is deleted."""
    on_restart: Literal["lost", "rerun"] = "lost"
    """What becomes of a rollout without a checkpoint when the server is killed. `rerun` runs it
    again if its sandbox has no network."""


@dataclass(frozen=True, slots=True)
class EnvServerFlags:
    """A socket for the env clients of verifiers and prime-rl."""

    zmq: str | None = None
    """Address of a ZMQ socket without authentication, such as `tcp://127.0.0.1:5000`."""
    zmq_key: tuple[str, ...] = ()
    """Variable with the key of a model endpoint that a run may name. Repeatable."""
    zmq_remote: bool = False
    """Permission for other machines to reach the ZMQ socket."""


Access = Annotated[AccessFlags, Parameter(name="*")]
Caps = Annotated[CapFlags, Parameter(name="*")]
Record = Annotated[RecordFlags, Parameter(name="*")]
EnvSocket = Annotated[EnvServerFlags, Parameter(name="*")]


def serve(
    *tasks_dirs: Path,
    options: Run = RunFlags(),
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = _PORT,
    dir: Path = Path("serve"),  # noqa: A002 - the name of the flag
    slots: Annotated[int, Parameter(validator=Number(gte=1))] = 4,
    queue: Annotated[int, Parameter(validator=Number(gte=0))] = 1000,
    record: Record = RecordFlags(),
    access: Access = AccessFlags(),
    caps: Caps = CapFlags(),
    env_socket: EnvSocket = EnvServerFlags(),
    json: Json = False,
) -> None:
    """Run rollouts for a trainer, over HTTP.

    The options of rollouts are those of `bench run`. Ctrl-C lets what runs end; a second Ctrl-C
    cuts what runs. The next start of the same --dir continues, and loses no result.

    Examples:
        bench serve benchmarks/clawsbench/tasks
        bench serve TASKS --agent policy --slots 64 --sandbox docker
        bench serve TASKS --config serve.toml --host 0.0.0.0 --token-file tokens

    Args:
        tasks_dirs: Tasks, or directories of tasks, in any format.
        options: Options of each rollout. A request may set only the few that the guide names.
        host: Address to listen on.
        port: Port; 0 takes a free one.
        dir: Directory of the service: its database, its rollouts and its token.
        slots: Rollouts that run at once.
        queue: Rollouts that wait. Further requests are refused with status 429.
    """
    package = serve_package()
    settings = package.ServeSettings(
        tasks_dirs=tasks_dirs,
        config=configuration(options),
        host=host,
        port=port,
        directory=dir,
        slots=slots,
        queue=queue,
        keep_acknowledged_sec=record.keep_acknowledged,
        on_restart=record.on_restart,
        **_limits(caps),
        **_access_settings(access, env_socket),
    )

    def show(address: "ServerAddress") -> None:
        if json:
            shown = {"url": address.url, "token_file": _text(address.token_file)}
            print_json({**shown, "zmq": address.zmq}, is_line=True)
            return
        note(f"rollout service: {address.url}")
        if address.zmq is not None:
            note(f"for env clients of verifiers: {address.zmq}")
        note(f"try: {_curl(address)}")
        note("stop with Ctrl-C")

    package.serve(settings, on_ready=show, on_drain=_say_draining)


def _access_settings(access: AccessFlags, env_socket: EnvServerFlags) -> dict[str, Any]:
    return {
        "token_file": access.token_file,
        "no_auth": access.no_auth,
        "allowed_hosts": access.allowed_host,
        "allow_agents": access.allow_agent,
        "allow_inline_tasks": access.allow_inline_tasks,
        "allow_jobs": access.allow_jobs,
        "zmq": env_socket.zmq,
        "zmq_keys": env_socket.zmq_key,
        "zmq_remote": env_socket.zmq_remote,
    }


def _limits(flags: CapFlags) -> dict[str, Any]:
    values = asdict(flags)
    jobs = values.pop("jobs")
    return {"jobs": jobs, "caps": {k.removeprefix("cap_"): value for k, value in values.items()}}


def _say_draining(running: int) -> None:
    note(f"waiting for {running} rollouts; Ctrl-C again cuts them")


def serve_package() -> "ModuleType":
    """Import the rollout service.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import benchflow_serve
    except ImportError as error:
        raise UsageError(
            "the rollout service is not installed",
            hint="install the extra: pip install 'benchflow[serve]'",
        ) from error
    return benchflow_serve


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _curl(address: "ServerAddress") -> str:
    line = f"curl {address.url}/v1/capacity"
    if not address.needs_token:
        return line
    token = "$BENCHFLOW_SERVE_TOKEN"  # noqa: S105 - the name of a variable
    if address.token_file is not None:
        token = f"$(cat {shlex.quote(str(address.token_file))})"
    return f'{line} -H "Authorization: Bearer {token}"'
