"""What can be rolled back: one class per kind of state, and the store of all of them."""

from .backend import ROOT, StateBackend
from .make import make_store
from .servers import services_in
from .store import StateStore

__all__ = ["ROOT", "StateBackend", "StateStore", "make_store", "services_in"]
