"""The order in which a sandbox and its services are started."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from benchflow_contracts.container import ServiceCondition
from benchflow_contracts.errors import UsageError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.service import MAIN


def needs_of(spec: SandboxSpec) -> dict[str, Mapping[str, ServiceCondition]]:
    """Return what each service, and `main`, waits for.

    Raises:
        UsageError: Two have one name, something that is not there is waited for, or one has no
            network but that of the sandbox itself, whose place another may take.
    """
    needs: dict[str, Mapping[str, ServiceCondition]] = {MAIN: spec.container.needs}
    for service in spec.services:
        if service.name in needs:
            raise UsageError(f"two services are named {service.name!r}", where="services")
        shared: dict[str, ServiceCondition] = (
            {service.network_of: "started"} if service.network_of else {}
        )
        needs[service.name] = {**shared, **service.needs}
        if service.network_of == MAIN:
            raise UsageError(
                f"{service.name!r} is in the network of the sandbox itself", where="services"
            )
    for name, wanted in needs.items():
        for other, condition in wanted.items():
            if other not in needs:
                raise UsageError(
                    f"{name!r} waits for {other!r}, which is no service", where="services"
                )
            if other == MAIN and condition == "completed":
                raise UsageError(f"{name!r} waits for the end of the sandbox", where="services")
    return needs


def start_order(needs: Mapping[str, Mapping[str, ServiceCondition]]) -> list[str]:
    """Return the names, each after all that it needs; what depends on `main` comes last.

    Raises:
        UsageError: Some wait for each other.
    """
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise UsageError(f"services wait for each other: {circle}", where="services") from None
    behind = {MAIN}
    for name in order:
        if behind & needs[name].keys():
            behind.add(name)
    behind.remove(MAIN)
    before = [name for name in order if name != MAIN and name not in behind]
    return [*before, MAIN, *(name for name in order if name in behind)]
