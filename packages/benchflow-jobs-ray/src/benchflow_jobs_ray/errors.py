"""The errors of this package."""

from benchflow_contracts import CapacityError, HostError


class RayStartError(HostError):
    """Ray did not start, or has no node that runs rollouts. Nothing is left of the start."""

    default_hint = "try again when the machine is idle, or give the address of a running cluster"


class NoNodeError(CapacityError):
    """No node of the Ray cluster is left. A job stops, and can be resumed."""

    default_hint = "start nodes again, then resume the job"
    stops_job = True
