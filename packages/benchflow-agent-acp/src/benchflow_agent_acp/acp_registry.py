"""Declarations from entries of the public ACP registry."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from benchflow_contracts import UsageError
from pydantic import BaseModel, Field, ValidationError

from .declaration import AgentDecl, AgentId, Text
from .declaration_file import parse_declaration

Wire = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]


class RegistryPackage(BaseModel):
    """`npx` or `uvx` of an entry."""

    package: Text
    args: tuple[Text, ...] = ()
    env: Mapping[str, Text] = {}


class RegistryBinary(BaseModel):
    """One platform of `binary` of an entry. Its archive is not fetched."""

    cmd: Text
    args: tuple[Text, ...] = ()
    env: Mapping[str, Text] = {}


class RegistryDistribution(BaseModel):
    """How an entry is installed."""

    npx: RegistryPackage | None = None
    uvx: RegistryPackage | None = None
    binary: Mapping[str, RegistryBinary] = {}


class RegistryEntry(BaseModel):
    """An agent of the registry. Fields that are not used here are ignored.

    Format: `agent.json` of github.com/agentclientprotocol/registry; `registry.json` is an object
    with a list `agents` of them.
    """

    id: AgentId
    name: Text
    version: Text
    description: Text = ""
    repository: Text | None = None
    license: Text | None = None
    distribution: RegistryDistribution


class Registry(BaseModel):
    """`registry.json`."""

    agents: Annotated[tuple[RegistryEntry, ...], Field(max_length=10_000)]


def read_entry(data: bytes, agent: str | None, *, where: str) -> RegistryEntry:
    """Return the entry of a `registry.json` with the id `agent`, or the entry of an `agent.json`.

    Raises:
        UsageError: The bytes are neither file, or have no such entry.
    """
    try:
        value = json.loads(data)
        is_list = isinstance(value, dict) and "agents" in value
        entries = Registry.model_validate(value if is_list else {"agents": (value,)}).agents
    except (ValueError, RecursionError) as error:
        reason = error.errors()[0] if isinstance(error, ValidationError) else error
        raise UsageError(f"not an entry of the ACP registry: {reason}", where=where) from error
    if agent is None and len(entries) == 1:
        return entries[0]
    found = next((entry for entry in entries if entry.id == agent), None)
    if found is None:
        known = ", ".join(entry.id for entry in entries[:40])
        raise UsageError(f"no agent {agent!r} in the registry; known: {known}", where=where)
    return found


def declaration_of(
    entry: RegistryEntry, *, wire: Wire, env: Mapping[str, str] = {}, platform: str = "linux-x86_64"
) -> tuple[AgentDecl, str]:
    """Return the declaration of an entry, and its TOML text.

    The registry does not say how an agent gets its model. `wire` is the protocol of its model
    calls, and `env` has the variables that set the endpoint, as templates.

    Raises:
        UsageError: The entry has no distribution for `platform`, or a value is not valid.
    """
    source = entry.distribution
    package = source.npx or source.uvx
    launch: RegistryPackage | RegistryBinary
    if package is not None:
        kind = "npx" if source.npx is not None else "uvx"
        program, pinned = _program(package.package), _pinned(package.package, kind, entry.version)
        table = f"[distribution.{kind}]\npackage = {_text(pinned)}\n"
        launch = package
    elif (binary := source.binary.get(platform)) is not None:
        launch = binary
        program = binary.cmd.removeprefix("./").rpartition("/")[2]
        table = "[distribution.binary]\n"
    else:
        known = ", ".join(source.binary) or "none"
        raise UsageError(
            f"agent {entry.id!r} has no npx, no uvx and no program for {platform}; it has: {known}",
            hint="choose another --platform, or write a declaration by hand",
        )
    variables = {**launch.env, **env}
    lines = [f"{key} = {_text(value)}" for key, value in _head(entry).items()]
    lines += ["", table, "[launch]", f"cmd = {_text(program)}", f"args = {_text(launch.args)}"]
    lines += ["", "[launch.env]", *(f"{_text(k)} = {_text(v)}" for k, v in variables.items())]
    lines += ["", "[model]", f"wire = {_text(wire)}", "", "[mcp]", 'transport = "acp"', ""]
    text = "\n".join(lines)
    return parse_declaration(text.encode(), where=f"the entry {entry.id!r}"), text


def _head(entry: RegistryEntry) -> dict[str, str]:
    fields = ("id", "name", "version", "description", "repository", "license")
    return {key: value for key in fields if (value := getattr(entry, key)) is not None}


def _program(package: str) -> str:
    """Return the program that `npx` or `uvx` starts for a package: the package's last name."""
    return _split(package)[0].rpartition("/")[2].partition("[")[0]


def _pinned(package: str, kind: str, version: str) -> str:
    """Return the package at its own version, or at its entry's."""
    name, own = _split(package)
    return f"{name}{'==' if kind == 'uvx' else '@'}{own or version}"


def _split(package: str) -> tuple[str, str | None]:
    """Return the name and the version of `@scope/name@1`, `name==1` and `name[extra]@1`."""
    scope = package[:1] if package.startswith("@") else ""
    name, _, version = package.removeprefix("@").replace("==", "@", 1).partition("@")
    return scope + name, version if version != "latest" and version else None


def _text(value: object) -> str:
    """Return a string or a list of strings as TOML. JSON of these is valid TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
