"""`python3 -I DIRECTORY [agent|tool_server]`: import the directory as a package and serve."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[0] = str(here.parent)
    part = sys.argv[1] if len(sys.argv) > 1 else "agent"
    import_module(f"{here.name}.{part}").main()
