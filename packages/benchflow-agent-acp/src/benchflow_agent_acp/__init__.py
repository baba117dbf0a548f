"""ACP agents for BenchFlow: the client, the session and the agent declarations.

`benchflow_agent_acp.session` needs the ACP library, whose import takes a second, so this package
imports it at the first connect. Declarations and the probe are imported on first use, because the
oracle and nop need neither.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

from .agent import AcpAgent, DeclaredAgent
from .builtin import agent_from_file, agent_from_package, agent_of, shipped_declaration
from .limits import WireLimits
from .nop import NopAgent
from .oracle import OracleAgent

if TYPE_CHECKING:
    from .agent_probe import probe
    from .command_agent import CommandAgent
    from .declaration import AgentDecl, Proof
    from .declaration_file import parse_declaration, read_declaration, write_proven
    from .probe_report import ProbeReport

__all__ = [
    "AcpAgent",
    "AgentDecl",
    "CommandAgent",
    "DeclaredAgent",
    "NopAgent",
    "OracleAgent",
    "ProbeReport",
    "Proof",
    "WireLimits",
    "agent_from_file",
    "agent_from_package",
    "agent_of",
    "parse_declaration",
    "probe",
    "read_declaration",
    "shipped_declaration",
    "write_proven",
]

_LAZY = {
    "AgentDecl": "declaration",
    "CommandAgent": "command_agent",
    "ProbeReport": "probe_report",
    "Proof": "declaration",
    "parse_declaration": "declaration_file",
    "probe": "agent_probe",
    "read_declaration": "declaration_file",
    "write_proven": "declaration_file",
}


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
