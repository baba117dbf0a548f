"""Run one branch: one path through one world, up to its end or its fork."""

from .branch_run import BranchRun
from .fork_controller import ForkServices

__all__ = ["BranchRun", "ForkServices"]
