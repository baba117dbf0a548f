"""ACP agents for BenchFlow: the client, the session and the agent declarations.

The session itself is in `benchflow_agent_acp.session`: it needs the ACP library,
whose import takes a second, so this package imports it at the first connect.
"""

from .agent import AcpAgent
from .builtin import agent_from_file, declaration_path, shipped_declaration
from .declaration import AgentDecl, Proof
from .declaration_file import parse_declaration, read_declaration, write_proven
from .limits import WireLimits
from .nop import NopAgent
from .oracle import OracleAgent
from .probe import probe
from .probe_report import ProbeReport

__all__ = [
    "AcpAgent",
    "AgentDecl",
    "NopAgent",
    "OracleAgent",
    "ProbeReport",
    "Proof",
    "WireLimits",
    "agent_from_file",
    "declaration_path",
    "parse_declaration",
    "probe",
    "read_declaration",
    "shipped_declaration",
    "write_proven",
]
