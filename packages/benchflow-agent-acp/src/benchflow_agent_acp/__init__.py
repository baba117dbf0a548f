"""ACP agents for BenchFlow: the client, the session and the agent declarations.

The session itself is in `benchflow_agent_acp.session`: it needs the ACP library,
whose import takes a second, so this package imports it at the first connect.
"""

from .agent import AcpAgent
from .builtin import agent_from_file, shipped_declaration
from .declaration import AgentDecl
from .declaration_file import parse_declaration, read_declaration
from .limits import WireLimits
from .nop import NopAgent
from .oracle import OracleAgent
from .probe import ProbeReport, probe

__all__ = [
    "AcpAgent",
    "AgentDecl",
    "NopAgent",
    "OracleAgent",
    "ProbeReport",
    "WireLimits",
    "agent_from_file",
    "parse_declaration",
    "probe",
    "read_declaration",
    "shipped_declaration",
]
