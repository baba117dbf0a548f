"""A link that the first process of a sandbox starts, and not a command of the cloud.

A cloud may leave out the processes of its own commands when it restores a snapshot of memory.
"""

from collections.abc import Sequence

from .transport import PROGRAM

_ORDER, _CODE = "/.benchflow/serve", "/.benchflow/served"
_PAUSE = "sleep 0.05 2> /dev/null || sleep 1"
_SCRIPT = (
    f"until [ -s {_ORDER} ]; do {_PAUSE}; done; read -r ports < {_ORDER}; rm {_ORDER};"
    f' {PROGRAM} serve "$ports"; echo $? > {_CODE}.new; mv {_CODE}.new {_CODE};'
    " while :; do sleep 86400; done"
)
ENTRY = ("/bin/sh", "-c", _SCRIPT)
"""The first command of a sandbox. It starts the link when `entry_order` asks for it."""


def entry_order(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command by which `ENTRY` runs `argv`, if it starts the link; else `argv`."""
    if tuple(argv[:2]) != (PROGRAM, "serve"):
        return tuple(argv)
    script = (
        f'echo "$0" > {_ORDER}.new; mv {_ORDER}.new {_ORDER};'
        f" until [ -e {_CODE} ]; do {_PAUSE}; done; read -r code < {_CODE}; rm {_CODE}; exit $code"
    )
    return ("/bin/sh", "-c", script, argv[2])
