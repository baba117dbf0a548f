"""Agents from declarations: those of a package, an operator's file, and our own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import UsageError

from .agent import AcpAgent, DeclaredAgent
from .nop import NopAgent
from .oracle import OracleAgent

if TYPE_CHECKING:
    from .declaration import AgentDecl


def agent_of(decl: AgentDecl, *, path: Path | None = None) -> DeclaredAgent:
    """Return the agent of a declaration. `path` is the file from which it was read, if any."""
    if decl.command is None:
        return AcpAgent(decl, path=path)
    from .command_agent import CommandAgent  # noqa: PLC0415 - few runs need it

    return CommandAgent(decl, path=path)


def agent_from_package(package: str, declaration: str) -> DeclaredAgent:
    """Return the agent whose declaration is a file of `package`.

    A package ships an agent with a function that calls this one, as an entry point in the group
    `benchflow.agents`. A program of the package is named in `[distribution.builtin]`.

    Raises:
        UsageError: The package has no such file, or the file is not a declaration.
    """
    # The oracle and nop have no declaration, so a run with them does not load the reader.
    from .declaration_file import parse_declaration  # noqa: PLC0415

    source = files(package).joinpath(declaration)
    if not source.is_file():
        raise UsageError(f"package {package!r} has no declaration {declaration!r}")
    decl = parse_declaration(source.read_bytes(), where=f"{package}/{declaration}")
    # A package in a zip file has no path.
    return agent_of(decl, path=source if isinstance(source, Path) else None)


def agent_from_file(path: Path | str) -> DeclaredAgent:
    """Return the agent that an operator's declaration file describes.

    Raises:
        UsageError: The file is not a declaration; the message starts with `file:key`.
    """
    from .declaration_file import read_declaration  # noqa: PLC0415

    return agent_of(read_declaration(Path(path)), path=Path(path))


def shipped_declaration(agent_id: str) -> AgentDecl:
    """Return the declaration of an agent that this package ships."""
    return _declared(agent_id).decl


def _declared(agent_id: str) -> DeclaredAgent:
    return agent_from_package("benchflow_agent_acp", f"declarations/{agent_id}.toml")


def _shipped(agent_id: str) -> AcpAgent:
    agent = _declared(agent_id)
    assert isinstance(agent, AcpAgent)
    return agent


def aider() -> DeclaredAgent:
    """Return aider, as a command."""
    return _declared("aider")


def auggie() -> AcpAgent:
    """Return Auggie."""
    return _shipped("auggie")


def claude_agent_acp() -> AcpAgent:
    """Return Claude Code, through its ACP adapter."""
    return _shipped("claude-agent-acp")


def cline() -> DeclaredAgent:
    """Return Cline, as a command."""
    return _declared("cline")


def codex_acp() -> AcpAgent:
    """Return Codex, through its ACP adapter."""
    return _shipped("codex-acp")


def gemini() -> AcpAgent:
    """Return Gemini CLI."""
    return _shipped("gemini")


def goose() -> AcpAgent:
    """Return goose."""
    return _shipped("goose")


def kimi() -> AcpAgent:
    """Return Kimi Code."""
    return _shipped("kimi")


def mini_swe_agent() -> DeclaredAgent:
    """Return mini-swe-agent, as a command."""
    return _declared("mini-swe-agent")


def mistral_vibe() -> AcpAgent:
    """Return Mistral Vibe."""
    return _shipped("mistral-vibe")


def openhands() -> DeclaredAgent:
    """Return OpenHands, as a command."""
    return _declared("openhands")


def opencode() -> AcpAgent:
    """Return OpenCode."""
    return _shipped("opencode")


def qwen() -> AcpAgent:
    """Return Qwen Code."""
    return _shipped("qwen")


def terminus_2() -> DeclaredAgent:
    """Return Terminus 2, as a command."""
    return _declared("terminus-2")


def zed_codex_acp() -> AcpAgent:
    """Return Codex, through Zed's ACP adapter."""
    return _shipped("zed-codex-acp")


def scripted() -> AcpAgent:
    """Return the agent that follows a script."""
    return _shipped("scripted")


def oracle() -> OracleAgent:
    """Return the agent that runs the task's own solution."""
    return OracleAgent(scripted)


def nop() -> NopAgent:
    """Return the agent that does nothing."""
    return NopAgent()
