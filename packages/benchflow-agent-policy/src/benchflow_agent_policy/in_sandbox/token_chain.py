"""Check that each model call's prompt starts with the tokens of the call before."""

import hashlib
from array import array
from dataclasses import dataclass

from .wire import Json, as_list, as_object


@dataclass(slots=True)
class TokenChain:
    """Checks the endpoint's token ids; stores a digest, not the ids.

    A break means that the chat template rendered an earlier message with other tokens than the
    model sampled. The number of breaks is reported, because a trainer must know them.
    """

    length: int = 0
    """The tokens of the last prompt and completion; 0 if the endpoint sends no ids."""
    digest: str = ""
    links: int = 0
    """The calls whose prompt started with exactly those tokens."""
    breaks: int = 0

    def feed(self, response: Json) -> None:
        """Check the ids of one response, if it has ids."""
        choices = as_list(response.get("choices"))
        choice = as_object(choices[0]) if choices else {}
        prompt = _ids(response.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids"))
        if not prompt:
            self.length = 0
            return
        if self.length:
            same = _digest(prompt[: self.length]) == self.digest
            self.links += same
            self.breaks += not same
        whole = prompt + _ids(choice.get("token_ids"))
        self.length, self.digest = len(whole), _digest(whole)

    def report(self) -> Json:
        """Return the two counts for the client."""
        return {"links": self.links, "breaks": self.breaks}


def _ids(value: object) -> list[int]:
    return [item for item in as_list(value) if type(item) is int and 0 <= item < 1 << 32]


def _digest(ids: list[int]) -> str:
    return hashlib.sha256(array("Q", ids).tobytes()).hexdigest()
