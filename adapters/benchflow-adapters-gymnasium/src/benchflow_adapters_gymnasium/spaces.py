"""The space of all texts, for actions and observations of tasks."""

# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false

from gymnasium import spaces


class AnyText(spaces.Text):
    """Every text up to a length. `spaces.Text` knows only the characters of a small set.

    A sample has characters of that set.
    """

    def contains(self, x: object) -> bool:
        """Return whether `x` is a text that is not too long."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"AnyText({self.min_length}, {self.max_length})"


class ToolCallText(AnyText):
    """The text of a tool call, or the call as a mapping with `name` and `arguments`."""

    def contains(self, x: object) -> bool:
        """Return whether `x` is a text or a mapping. What it says is checked by the step."""
        return isinstance(x, dict) or super().contains(x)
