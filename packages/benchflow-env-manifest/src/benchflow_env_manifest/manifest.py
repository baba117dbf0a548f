"""The manifest's data model: every table and key of `environment.toml`."""

from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from benchflow_contracts import IMAGE_NAME
from pydantic import AfterValidator, Field, model_validator

from .coherence import cross_problems
from .state_tables import Array, Name, Port, StateTables, Table, Text, printable

MAX_WAIT_SEC = 24 * 60 * 60

_LOOPBACK = ("localhost", "127.0.0.1")


def _loopback_url(text: str) -> str:
    try:
        url = urlsplit(printable(text))
        port_ok = url.port != 0
    except ValueError as exc:
        raise ValueError(f"is not a URL: {exc}") from None
    if url.scheme not in ("http", "https") or url.hostname not in _LOOPBACK:
        raise ValueError("must be http:// or https:// on localhost or 127.0.0.1")
    if url.username is not None or " " in text or not port_ok:
        raise ValueError("must be plain: no user, no spaces and no port 0")
    return text


def _hidden_glob(text: str) -> str:
    path = PurePosixPath(printable(text))
    if not path.parts or path.parts == ("/",):
        raise ValueError("must name something below the working directory or /")
    if ".." in path.parts or "**" in text:
        raise ValueError(
            "must not contain `..` or `**`; a hidden directory hides all files below it"
        )
    return text


EnvKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
# A name, never a path: a manifest must not choose a directory of the host.
ImageName = Annotated[str, Field(pattern=IMAGE_NAME, max_length=4096)]
LoopbackUrl = Annotated[str, Field(max_length=2048), AfterValidator(_loopback_url)]
HiddenGlob = Annotated[str, Field(max_length=1024), AfterValidator(_hidden_glob)]


class TaskSelection(Table):
    """`[environment.task_selection]`: how the world gets the name of its task."""

    mechanism: Literal["image", "env_var"] = "env_var"
    key: EnvKey = "BENCHFLOW_TASK_ID"
    inject_into: Literal["entrypoint", "exec"] = "entrypoint"


class Service(Table):
    """`[[environment.services]]`: one service that the framework starts."""

    name: Name
    command: Text
    """A command for the sandbox's shell. It must stay in the foreground."""
    port: Port
    health_path: Annotated[
        str, Field(pattern=r"^(/[^\s]*)?$", max_length=4096), AfterValidator(printable)
    ] = "/health"
    """Empty for a service without HTTP, which must accept a connection instead."""

    @property
    def health_url(self) -> str:
        """The URL to probe: a status of 2xx or 3xx means ready."""
        return f"http://localhost:{self.port}{self.health_path}"


class Readiness(Table):
    """`[environment.readiness]`: probes that must succeed before the agent starts."""

    http: tuple[LoopbackUrl, ...] = Array
    tcp: tuple[Port, ...] = Array
    timeout_sec: int = Field(default=120, ge=1, le=MAX_WAIT_SEC)


class ForwardEnv(Table):
    """`[environment.forward_env]`: host variables for the world."""

    keys: tuple[EnvKey, ...] = Array


class Invariant(Table):
    """`[[environment.invariants]]`: a condition that is true in every state of the world."""

    name: Annotated[Text, Field(max_length=200)]
    command: Text | None = None
    """Runs as root. Its output must equal `expect`; without `expect` it must exit with 0."""
    sql: Text | None = None
    """One SELECT; the first column of its first row is compared."""
    state: Annotated[Text, Field(max_length=1024)] | None = None
    """For `sql`: the path of a SQLite database, or the name of a Postgres state."""
    expect: str | int | float | bool | None = None


class Fork(Table):
    """`[environment.fork]`: commands in a fork before its agent gets a prompt."""

    reseed: tuple[Text, ...] = Array
    """Commands, run as root with the fork's own `BENCHFLOW_SEED`."""


class EnvironmentTable(Table):
    """`[environment]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@/+-]*$", max_length=128)
    image: ImageName | None = None
    base_image: ImageName | None = None
    ports: tuple[Port, ...] = Array
    owns_lifecycle: bool = True
    keep_alive: bool = True
    isolation: Literal["per_task", "persistent"] = "per_task"
    task_selection: TaskSelection = TaskSelection()
    services: tuple[Service, ...] = Array
    readiness: Readiness = Readiness()
    forward_env: ForwardEnv = ForwardEnv()
    state: StateTables = ()
    invariants: tuple[Invariant, ...] = Array
    fork: Fork = Fork()


class VerifierTable(Table):
    """`[verifier]`: information about the world for the grader."""

    kind: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)
    hidden_from_agent: tuple[HiddenGlob, ...] = Array


class Manifest(Table):
    """One valid `environment.toml`."""

    environment: EnvironmentTable
    verifier: VerifierTable = VerifierTable()

    @model_validator(mode="after")
    def _coherent(self) -> "Manifest":
        problems = cross_problems(self.model_dump())
        if problems:
            raise ValueError("; ".join(f"{key}: {text}" for key, text in problems))
        return self

    @property
    def image(self) -> str:
        """The manifest's `image` or `base_image`."""
        image = self.environment.image or self.environment.base_image
        assert image is not None, "cross_problems requires exactly one"
        return image
