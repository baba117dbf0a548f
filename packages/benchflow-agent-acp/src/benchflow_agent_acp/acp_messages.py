"""The import of the 300 generated models of the ACP library."""

import inspect
from importlib import import_module
from threading import Lock
from typing import Any, Final

import pydantic

_LOCK = Lock()
_MODELS: Final = "acp.schema"


def import_messages() -> None:
    """Import the models, unless they are imported, in 0.6 of the processor time.

    Each model has `use_attribute_docstrings`, for which pydantic parses the source of the class,
    and nothing here shows a description. Most models are in no message of a run, so each is built
    on its first use.

    `pydantic.ConfigDict` is replaced meanwhile, because neither library has an option: pydantic has
    no default of `defer_build` for a process, a base class cannot be given to generated code, and
    models of our own for the messages would have to follow the protocol. The replacement changes
    only calls of that module; a module that another thread imports meanwhile gets what it asks for.
    """
    library: Any = pydantic

    def configure(**options: object) -> object:
        # Not a decision about other modules: their models may have descriptions.
        caller = getattr(inspect.currentframe(), "f_back", None)
        if caller is None or caller.f_globals.get("__name__") != _MODELS:
            return usual(**options)
        return usual(**{**options, "use_attribute_docstrings": False, "defer_build": True})

    with _LOCK:
        usual = library.ConfigDict
        library.ConfigDict = configure
        try:
            import_module(_MODELS)
        finally:
            library.ConfigDict = usual
