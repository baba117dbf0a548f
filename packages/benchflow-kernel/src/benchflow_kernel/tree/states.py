"""The text of an environment's state, as it is in a record."""

import hashlib

from benchflow_contracts import EnvState, StateRef


def encode_state(state: EnvState) -> tuple[StateRef, bytes]:
    """Return the reference of a state, without a file, and its JSON text.

    Raises:
        ValueError: The state has a value that JSON cannot express.
    """
    text = state.__pydantic_serializer__.to_json(state)
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return StateRef(digest=digest, size=len(text)), text
