"""`python3 -I <this directory> broker`, or `server TOOL`; both read the variable SOCKET."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[0] = str(here.parent)
    part, *arguments = sys.argv[1:]
    if part not in ("broker", "server"):
        sys.exit(f"unknown program {part!r}: use 'broker' or 'server'")
    import_module(f"{here.name}.{part}").main(*arguments)
