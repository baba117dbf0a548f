"""Imports every module of a package; run by the wheel session in an empty environment."""

import importlib
import pkgutil
import sys

package = importlib.import_module(sys.argv[1])
names = [info.name for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
# Programs that run inside a sandbox are files, not modules to import here.
names = [name for name in names if not name.endswith(".__main__")]
for name in names:
    importlib.import_module(name)
sys.stdout.write(f"imported {len(names) + 1} modules of {sys.argv[1]}\n")
