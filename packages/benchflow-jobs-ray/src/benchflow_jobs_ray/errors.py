"""The errors of this package."""

from benchflow_contracts import HostError


class RayStartError(HostError):
    """Ray did not start, or has no node that runs rollouts. Nothing is left of the start."""

    default_hint = "try again when the machine is idle, or give the address of a running cluster"
