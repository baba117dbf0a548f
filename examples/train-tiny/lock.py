"""The state machine of the lock, as the program `dial` of the task has it."""

from dataclasses import dataclass

CODE = "101"


@dataclass
class Lock:
    """The state of the lock, from no digit on."""

    right: int = 0
    is_jammed: bool = False

    def dial(self, digit: str) -> str:
        """Add a digit, and return the state as text."""
        if not self.is_jammed and self.right < len(CODE):
            self.is_jammed = digit != CODE[self.right]
            self.right += not self.is_jammed
        word = "jammed" if self.is_jammed else "right"
        return "open 3" if self.right == len(CODE) else f"{word} {self.right}"
