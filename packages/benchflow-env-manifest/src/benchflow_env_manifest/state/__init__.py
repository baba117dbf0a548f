"""State that can be rolled back: one class for each kind, and the store of all."""

from .backend import ROOT, StateBackend
from .make import make_store
from .servers import services_in
from .store import StateStore

__all__ = ["ROOT", "StateBackend", "StateStore", "make_store", "services_in"]
