"""The random seed of a child."""

import hashlib

_BITS = 63


def seed_of(rollout_id: str, node: str) -> int:
    """Return the seed of the world at `node`, the same for the same rollout id.

    Never negative, below 2**63, and different for siblings.
    """
    digest = hashlib.sha256(f"{rollout_id}\0{node}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)
