"""The messages of the Open Reward Standard, as ors-sdk 0.1 and openreward 0.1 send them.

A request with an unknown key is refused, as their servers do. An unknown key of an answer is
ignored, because newer servers add keys.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from benchflow_contracts import Model
from pydantic import ConfigDict, Field, FiniteFloat, JsonValue, model_validator

SESSION_HEADER: Final = "X-Session-ID"
SECRETS_HEADER: Final = "X-Secrets"
API_KEY_HEADER: Final = "X-API-Key"
IDLE_SEC: Final = 900.0
"""A server deletes a session that is idle for so long."""
PING_SEC: Final = 10.0
"""A client pings its session, and a server its open streams, once in this time."""

JsonObject = Mapping[str, JsonValue]
SplitType = Literal["train", "validation", "test"]
FailureReason = Literal["not_found", "name_collision", "input_validation", "episode_finished"]


class Answer(Model):
    """A message of a server."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Split(Answer):
    """A named set of tasks of an environment."""

    name: str
    type: SplitType


class TextBlock(Answer):
    """A text for the model."""

    text: str
    detail: Any = None
    type: Literal["text"] = "text"


class ImageBlock(Answer):
    """An image for the model."""

    data: str
    """Base64."""
    mimeType: str  # noqa: N815 - the name on the wire
    detail: Any = None
    type: Literal["image"] = "image"


Block = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolSpec(Answer):
    """A tool of an environment or of one task."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None
    """A JSON Schema, or `None` for a tool without input."""


class TerminalTool(Answer):
    """A tool that the model does not see. It gets the model's last message and ends the episode."""

    name: str
    arg: str | None = None
    """The key of the message; `None` if the tool does not read it."""
    description: str = ""


class ToolList(Answer):
    """The tools of an environment."""

    tools: tuple[ToolSpec, ...]
    terminal_tool: TerminalTool | None = None
    supports_score_group: bool | None = None
    message_block_types: tuple[str, ...] | None = None


class ToolOutput(Answer):
    """The output of a tool. A reward belongs to this call alone; `None` is not 0."""

    blocks: tuple[Block, ...]
    metadata: JsonValue = None
    reward: Annotated[FiniteFloat, Field(strict=True)] | None = None
    finished: Annotated[bool, Field(strict=True)] = False
    """Whether the episode has ended. Later calls must not count."""


class ToolSuccess(Answer):
    """A tool ran."""

    ok: Literal[True] = True
    output: ToolOutput


class ToolFailure(Answer):
    """A tool did not run."""

    ok: Literal[False] = False
    error: str
    reason: FailureReason | None = None


CallResult = Annotated[ToolSuccess | ToolFailure, Field(discriminator="ok")]


class TaskPage(Answer):
    """Tasks of a split."""

    tasks: tuple[JsonValue, ...]
    env_name: str | None = None


class TaskAnswer(Answer):
    """One task of a split. The client does not read it, and sends it back to create a session."""

    task: JsonValue
    env_name: str | None = None


class TaskCount(Answer):
    """The number of tasks of a split."""

    num_tasks: Annotated[int, Field(ge=0)]


class ErrorAnswer(Answer):
    """The body of a refusal."""

    detail: Any = ""


class SplitRequest(Model):
    """A request about one split."""

    split: str


class TaskRequest(SplitRequest):
    """A request for one task."""

    index: int


class TaskRangeRequest(SplitRequest):
    """A request for tasks by the rules of a Python slice."""

    start: int | None = None
    stop: int | None = None


class CreateRequest(Model):
    """A request to create the world of a session: by a task, or by a split and an index."""

    env_name: str | None = None
    task_spec: dict[str, JsonValue] | None = None
    split: str | None = None
    index: int | None = None
    secrets: Mapping[str, str] | None = Field(default=None, repr=False)
    toolset_name: str | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        is_indexed = self.split is not None and self.index is not None
        is_partial = (self.split is None) != (self.index is None)
        if is_partial or is_indexed == (self.task_spec is not None):
            raise ValueError("pass either task_spec, or both split and index")
        return self


class CallRequest(Model):
    """A call of a tool, or a request to read its result again."""

    name: str
    input: Mapping[str, JsonValue] = {}
    task_id: str | None = None
    """The id of a call that was made before. The tool does not run again."""


class GroupMessage(Model):
    """One turn of a candidate. Blocks of other types than text and image are not read."""

    role: Literal["system", "user", "assistant", "tool"]
    blocks: tuple[JsonObject, ...]
    detail: JsonValue = None


class GroupCandidate(Model):
    """One rollout of a group that is compared."""

    messages: tuple[GroupMessage, ...]
    metadata: JsonValue = None


class ScoreGroupRequest(Model):
    """A request to score the rollouts of one task together, or to read the scores again."""

    candidates: Annotated[tuple[GroupCandidate, ...], Field(min_length=1, max_length=1000)]
    task_id: str | None = None


class GroupScore(Answer):
    """The score of a candidate, beside the rewards of its own session."""

    reward: Annotated[FiniteFloat, Field(strict=True)]
    metadata: JsonValue = None


class GroupScores(Answer):
    """One score for each candidate, in order."""

    scores: tuple[GroupScore, ...]
