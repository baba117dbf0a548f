"""Entry points of `benchflow.task_servers`, which also load without the extra `server`."""

from benchflow_contracts import UsageError

_EXTRA = "install the extra: pip install 'benchflow[nemo-gym]'"


def resources_server() -> object:
    """Return the server `nemo-gym`: a resources server, whose client is an agent of NeMo Gym.

    Raises:
        UsageError: The extra is not installed.
    """
    try:
        from .served import ResourcesTaskServer  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        raise UsageError(f"a server needs the package {error.name!r}", hint=_EXTRA) from error
    return ResourcesTaskServer()


def agent_server() -> object:
    """Return the server `nemo-gym-agent`: our agent plays rows of NeMo Gym's collector.

    Raises:
        UsageError: The extra is not installed.
    """
    try:
        from .served import AgentTaskServer  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        raise UsageError(f"a server needs the package {error.name!r}", hint=_EXTRA) from error
    return AgentTaskServer()
