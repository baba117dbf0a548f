"""Were all newsletters archived, and nothing else?"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from world import Change, collateral, finish, load_world

NEWSLETTERS = ("msg-10", "msg-11", "msg-13", "msg-15")


def main() -> None:
    """Grade by the share of newsletters that left the inbox."""
    world = load_world()
    wanted = []
    for ident in NEWSLETTERS:
        key = (ident, "inbox")
        wanted.append(Change("message_labels", key, world.before["message_labels"][key], None))
    archived = [change for change in wanted if change in world.changes]
    target = len(archived) / len(wanted)
    # Reading a message may well mark it as read.
    read = [
        Change("message_labels", key, row, None)
        for key, row in world.before["message_labels"].items()
        if key[0] in NEWSLETTERS and key[1] == "unread"
    ]
    finish(target, collateral(world, wanted + read), archived=len(archived))


main()
