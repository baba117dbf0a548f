"""All objects, in the order of the page."""

from . import (
    files,
    identity,
    inet_sockets,
    locks,
    memory,
    pipes,
    processes,
    queues,
    scheduling,
    shared_memory,
    socket_options,
    terminals,
    timers,
    unix_sockets,
    watches,
)
from .kernel_object import OBJECTS as REGISTERED
from .kernel_object import KernelObject

MODULES = (
    unix_sockets,
    inet_sockets,
    socket_options,
    pipes,
    terminals,
    files,
    locks,
    watches,
    timers,
    queues,
    memory,
    shared_memory,
    processes,
    scheduling,
    identity,
)
SECTIONS = [module.a.title for module in MODULES]

OBJECTS: dict[str, KernelObject] = dict(
    sorted(REGISTERED.items(), key=lambda item: SECTIONS.index(item[1].section))
)
"""By name, in the order of the sections and of the builders in each."""
