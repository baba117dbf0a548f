"""The agents that ship with this package, as factories for the registry."""

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


def shipped_declaration(agent_id: str) -> AgentDecl:
    """Return the shipped declaration of an agent."""
    # The oracle and nop are declared by no file.
    from .declaration_file import parse_declaration  # noqa: PLC0415

    name = f"{agent_id}.toml"
    source = files("benchflow_agent_acp").joinpath("declarations").joinpath(name)
    return parse_declaration(source.read_bytes(), where=name)


def declaration_path(agent: str) -> Path:
    """Return the file that describes an agent, given as its id or as a path.

    Raises:
        UsageError: There is none on this disk.
    """
    path = Path(agent)
    if path.suffix != ".toml":
        path = Path(__file__).parent / "declarations" / f"{agent}.toml"
    if not path.is_file():
        raise UsageError(f"agent {agent!r} has no declaration file")
    return path


def agent_from_file(path: Path | str) -> AcpAgent:
    """Return the agent that a declaration file of the operator's describes.

    Raises:
        UsageError: The file is no declaration; the message starts with `file:key`.
    """
    from .declaration_file import read_declaration  # noqa: PLC0415

    return AcpAgent(read_declaration(Path(path)))


def claude_agent_acp() -> AcpAgent:
    """Return Claude Code, through its ACP adapter."""
    return AcpAgent(shipped_declaration("claude-agent-acp"))


def codex_acp() -> AcpAgent:
    """Return Codex, through its ACP adapter."""
    return AcpAgent(shipped_declaration("codex-acp"))


def gemini() -> AcpAgent:
    """Return Gemini CLI."""
    return AcpAgent(shipped_declaration("gemini"))


def mistral_vibe() -> AcpAgent:
    """Return Mistral Vibe."""
    return AcpAgent(shipped_declaration("mistral-vibe"))


def opencode() -> AcpAgent:
    """Return OpenCode."""
    return AcpAgent(shipped_declaration("opencode"))


def policy() -> AcpAgent:
    """Return our own agent, which acts through any OpenAI-compatible endpoint."""
    return AcpAgent(shipped_declaration("policy"))


def qwen() -> AcpAgent:
    """Return Qwen Code."""
    return AcpAgent(shipped_declaration("qwen"))


def zed_codex_acp() -> AcpAgent:
    """Return Codex, through Zed's ACP adapter."""
    return AcpAgent(shipped_declaration("zed-codex-acp"))


def scripted() -> AcpAgent:
    """Return the agent that follows a script."""
    return AcpAgent(shipped_declaration("scripted"))


def oracle() -> OracleAgent:
    """Return the agent that plays the task's own solution."""
    return OracleAgent(scripted)


def nop() -> NopAgent:
    """Return the agent that does nothing."""
    return NopAgent()
