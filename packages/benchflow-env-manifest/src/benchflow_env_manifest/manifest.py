"""The manifest's data model: every table and key of `environment.toml`."""

from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from benchflow_contracts import IMAGE_NAME, Model
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from .coherence import cross_problems

MAX_WAIT_SEC = 24 * 60 * 60

_RESERVED_ROOTS = ("/proc", "/sys", "/dev", "/.bf-state")
_LOOPBACK = ("localhost", "127.0.0.1")


def _printable(text: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must not contain control characters")
    return text


def _loopback_url(text: str) -> str:
    try:
        url = urlsplit(_printable(text))
        port_ok = url.port != 0
    except ValueError as exc:
        raise ValueError(f"is not a URL: {exc}") from None
    if url.scheme not in ("http", "https") or url.hostname not in _LOOPBACK:
        raise ValueError("must be http:// or https:// on localhost or 127.0.0.1")
    if url.username is not None or " " in text or not port_ok:
        raise ValueError("must be plain: no user, no spaces and no port 0")
    return text


def _state_path(text: str) -> str:
    path = PurePosixPath(_printable(text))
    if not path.is_absolute() or str(path) != text or ".." in path.parts or text.startswith("//"):
        raise ValueError("must be an absolute path in its simplest form, such as /data/world.db")
    if len(path.parts) < 2 or any(path.is_relative_to(root) for root in _RESERVED_ROOTS):
        raise ValueError("must name a file outside of /proc, /sys, /dev and /.bf-state")
    return text


def _hidden_glob(text: str) -> str:
    path = PurePosixPath(_printable(text))
    if not path.parts or path.parts == ("/",):
        raise ValueError("must name something below the working directory or /")
    if ".." in path.parts or "**" in text:
        raise ValueError("must not contain `..` or `**`; a hidden directory hides all below it")
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
EnvKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]
# A name, never a path: a manifest must not choose a directory of the host.
ImageName = Annotated[str, Field(pattern=IMAGE_NAME, max_length=4096)]
LoopbackUrl = Annotated[str, Field(max_length=2048), AfterValidator(_loopback_url)]
StatePath = Annotated[str, Field(max_length=1024), AfterValidator(_state_path)]
HiddenGlob = Annotated[str, Field(max_length=1024), AfterValidator(_hidden_glob)]

# TOML has arrays and no tuples: the outer type is converted, the items stay strict.
_Array = Field(default=(), strict=False)


class _Table(Model):
    model_config = ConfigDict(strict=True)


class TaskSelection(_Table):
    """`[environment.task_selection]`: how the world learns which task it is in."""

    mechanism: Literal["image", "env_var"] = "env_var"
    key: EnvKey = "BENCHFLOW_TASK_ID"
    inject_into: Literal["entrypoint", "exec"] = "entrypoint"


class Service(_Table):
    """`[[environment.services]]`: one service that the framework starts."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
    command: Text
    """Run by the sandbox's shell, in the foreground."""
    port: Port
    health_path: Annotated[Text, Field(pattern=r"^/[^\s]*$")] = "/health"

    @property
    def health_url(self) -> str:
        """The URL whose 2xx or 3xx says that the service is up."""
        return f"http://localhost:{self.port}{self.health_path}"


class Readiness(_Table):
    """`[environment.readiness]`: what must answer before the agent starts."""

    http: tuple[LoopbackUrl, ...] = _Array
    tcp: tuple[Port, ...] = _Array
    timeout_sec: int = Field(default=120, ge=1, le=MAX_WAIT_SEC)


class ForwardEnv(_Table):
    """`[environment.forward_env]`: host variables that the world may see."""

    keys: tuple[EnvKey, ...] = _Array


class State(_Table):
    """`[environment.state]`: what `snapshot` captures and `query` reads."""

    kind: Literal["sqlite"] = "sqlite"
    paths: tuple[StatePath, ...] = _Array


class EnvironmentTable(_Table):
    """`[environment]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@/+-]*$", max_length=128)
    image: ImageName | None = None
    base_image: ImageName | None = None
    ports: tuple[Port, ...] = _Array
    owns_lifecycle: bool = True
    keep_alive: bool = True
    isolation: Literal["per_task", "persistent"] = "per_task"
    task_selection: TaskSelection = TaskSelection()
    services: tuple[Service, ...] = _Array
    readiness: Readiness = Readiness()
    forward_env: ForwardEnv = ForwardEnv()
    state: State | None = None


class VerifierTable(_Table):
    """`[verifier]`: what the grader knows about the world."""

    kind: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)
    hidden_from_agent: tuple[HiddenGlob, ...] = _Array


class Manifest(_Table):
    """One `environment.toml`, read and checked."""

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
        """The image that the manifest names, ready-made or base."""
        image = self.environment.image or self.environment.base_image
        assert image is not None, "cross_problems demands exactly one"
        return image
