"""What `docs/reference/agents-proven.md` says of the agents, shown by runs of `bench`.

`python -m proven.model` is the model server of those runs, `python -m proven` runs them all.
"""

from .cells import Cell, cells, cells_of
from .model import PORT, remember_and_ask
from .page import proven_page, shipped_agents, shipped_declarations

__all__ = [
    "PORT",
    "Cell",
    "cells",
    "cells_of",
    "proven_page",
    "remember_and_ask",
    "shipped_agents",
    "shipped_declarations",
]
