"""Entry points of `benchflow.task_servers`, which also load without the extra `server`."""

from importlib import import_module

from benchflow_contracts import UsageError


def resources_server() -> object:
    """Return the server `nemo-gym`: a resources server, whose client is an agent of NeMo Gym.

    Raises:
        UsageError: The extra is not installed.
    """
    return _served("ResourcesTaskServer")


def agent_server() -> object:
    """Return the server `nemo-gym-agent`: our agent plays rows of NeMo Gym's collector.

    Raises:
        UsageError: The extra is not installed.
    """
    return _served("AgentTaskServer")


def _served(name: str) -> object:
    try:
        module = import_module(f"{__package__}.served")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the server needs the package {error.name!r}",
            hint="install the extra: pip install 'benchflow[nemo-gym]'",
        ) from error
    return getattr(module, name)()
