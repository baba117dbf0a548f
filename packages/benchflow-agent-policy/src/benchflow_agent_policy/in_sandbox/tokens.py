"""Whether each model call's prompt goes on from the tokens of the call before it."""

import hashlib
from array import array
from dataclasses import asdict, dataclass

from .wire import Json, as_list, as_object


@dataclass(slots=True)
class TokenChain:
    """Checks the endpoint's token ids as they come; keeps a digest, not the ids.

    A broken link means that the chat template rendered what was said before with other
    tokens than the ones it was sampled with. A trainer has to know that.
    """

    length: int = 0
    """Tokens of the last prompt and its completion; 0 when the endpoint tells none."""
    digest: str = ""
    links: int = 0
    """Calls whose prompt began with exactly those tokens."""
    breaks: int = 0

    def feed(self, response: Json) -> None:
        """Take the ids of one response, if it has some."""
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
        """Return the two counts, for the client."""
        return {"links": self.links, "breaks": self.breaks}

    def state(self) -> Json:
        """Return what a loaded session goes on from."""
        return asdict(self)


def _ids(value: object) -> list[int]:
    return [item for item in as_list(value) if type(item) is int and 0 <= item < 1 << 32]


def _digest(ids: list[int]) -> str:
    return hashlib.sha256(array("Q", ids).tobytes()).hexdigest()
