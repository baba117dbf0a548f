"""Agents from declarations: those of a package, an operator's file, and our own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import UsageError

from .agent import AcpAgent
from .nop import NopAgent
from .oracle import OracleAgent

if TYPE_CHECKING:
    from .declaration import AgentDecl


def agent_from_package(package: str, declaration: str) -> AcpAgent:
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
    return AcpAgent(decl, path=source if isinstance(source, Path) else None)


def agent_from_file(path: Path | str) -> AcpAgent:
    """Return the agent that an operator's declaration file describes.

    Raises:
        UsageError: The file is not a declaration; the message starts with `file:key`.
    """
    from .declaration_file import read_declaration  # noqa: PLC0415

    return AcpAgent(read_declaration(Path(path)), path=Path(path))


def shipped_declaration(agent_id: str) -> AgentDecl:
    """Return the declaration of an agent that this package ships."""
    return _shipped(agent_id).decl


def _shipped(agent_id: str) -> AcpAgent:
    return agent_from_package("benchflow_agent_acp", f"declarations/{agent_id}.toml")


def claude_agent_acp() -> AcpAgent:
    """Return Claude Code, through its ACP adapter."""
    return _shipped("claude-agent-acp")


def codex_acp() -> AcpAgent:
    """Return Codex, through its ACP adapter."""
    return _shipped("codex-acp")


def gemini() -> AcpAgent:
    """Return Gemini CLI."""
    return _shipped("gemini")


def mistral_vibe() -> AcpAgent:
    """Return Mistral Vibe."""
    return _shipped("mistral-vibe")


def opencode() -> AcpAgent:
    """Return OpenCode."""
    return _shipped("opencode")


def qwen() -> AcpAgent:
    """Return Qwen Code."""
    return _shipped("qwen")


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
