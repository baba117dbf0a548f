"""Imports every module of a package; run by the wheel session in an empty environment.

A module that needs the package of an extra which is not installed is skipped, and so is one that
needs a package of `FOREIGN`.
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys

FOREIGN = {"benchflow_adapters_verifiers": "verifiers"}
"""Packages that users install themselves, because their requirements conflict with ours."""


def skipped(error: ModuleNotFoundError, package: str) -> bool:
    """Return whether a requirement of an extra of `package` is the missing module."""
    missing = (error.name or "").partition(".")[0].replace("_", "-")
    if FOREIGN.get(package) == missing:
        return True
    wanted = importlib.metadata.requires(package.replace("_", "-")) or ()
    return any(
        re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] == missing
        for each in wanted
        if "extra ==" in each
    )


package = importlib.import_module(sys.argv[1])
names = [info.name for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
# Programs that run inside a sandbox are files, not modules to import here.
names = [name for name in names if not name.endswith(".__main__")]
left_out = 0
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not skipped(error, sys.argv[1]):
            raise
        left_out += 1
sys.stdout.write(f"imported {len(names) + 1 - left_out} modules of {sys.argv[1]}")
sys.stdout.write(f", {left_out} need an extra\n" if left_out else "\n")
