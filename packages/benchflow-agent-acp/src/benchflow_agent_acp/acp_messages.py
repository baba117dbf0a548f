"""The import of the 300 generated models of the ACP library."""

from importlib import import_module
from threading import Lock
from typing import Any

import pydantic

_LOCK = Lock()


def import_messages() -> None:
    """Import the models, unless they are imported, in 0.15 s instead of 0.3 s.

    The models describe their fields by docstrings, which pydantic reads from the source. Nothing
    here shows a description. Most models are in no message of a run, so each is built at first
    use. The library has no option for either.
    """
    library: Any = pydantic

    def configure(**options: object) -> object:
        return usual(**{**options, "use_attribute_docstrings": False, "defer_build": True})

    with _LOCK:
        usual = library.ConfigDict
        library.ConfigDict = configure
        try:
            import_module("acp.schema")
        finally:
            library.ConfigDict = usual
