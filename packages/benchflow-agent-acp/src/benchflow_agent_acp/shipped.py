"""Programs of this package as they are copied into sandboxes."""

import atexit
import py_compile
import shutil
import sys
import tempfile
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath

_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


@cache
def shipped_file(file: str, target: str) -> Path:
    """Return a directory to merge into that of `target`: a Python file, also compiled.

    Compiled once in the life of this process. Python names what it compiled by its version:
    where the sandbox's is another one, it compiles the source itself, as ever.
    """
    folder = Path(tempfile.mkdtemp(prefix="benchflow-shipped-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = folder / PurePosixPath(target).name
    with as_file(files("benchflow_agent_acp").joinpath(file)) as source:
        shutil.copyfile(source, place)
    # The agent's user cannot write there, so that the two always belong together.
    compiled = folder / "__pycache__" / f"{place.stem}.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(place),
        cfile=str(compiled),
        dfile=target,
        doraise=True,
        optimize=0,
        invalidation_mode=_UNCHECKED,
    )
    return folder
