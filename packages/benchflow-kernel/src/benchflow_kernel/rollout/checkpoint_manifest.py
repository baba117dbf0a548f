"""The manifest of a saved checkpoint, from which a later process resumes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import (
    Answer,
    Ask,
    EnvState,
    Fidelity,
    ModelCall,
    NodeError,
    OutsideState,
    PendingCall,
    RareModel,
    Role,
    SandboxImage,
    SessionSnapshot,
    SessionState,
    Step,
    StoreError,
    VerifyResult,
)
from pydantic import Field, ValidationError

CHECKPOINT_FILE: Final = "checkpoint.json"
IMAGE: Final = "image"
HOME: Final = "checkpoints"
"""The directory of a rollout with one directory for each saved checkpoint."""


class SavedTurn(RareModel):
    """A turn of the schedule. Its role is resolved again, by name."""

    scene: str
    role: str
    agent: str
    model: str | None = None
    prompt: str | None = None
    task_step: int = Field(default=0, ge=0)


class SavedExchange(RareModel):
    """A question between the checkpoint and the node. An open question has no answer."""

    turn: int = Field(ge=0)
    ask: Ask
    answer: Answer | None = None


class SavedSession(RareModel):
    """An idle session in files, or the client side of a live session."""

    role: str
    agent: str
    model: str | None = None
    snapshot: SessionSnapshot | None = None
    carry: SessionState | None = None


class SavedStep(RareModel):
    """A step on the path to the node, with the label of the branch that it starts."""

    step: Step | None
    """`None` at the root."""
    label: str | None = None
    results: Mapping[str, VerifyResult] = {}
    """The verdicts on the steps of the task that were graded at this node."""
    error: NodeError | None = None
    """Why the agent ended its work early at this node."""


class CheckpointManifest(RareModel):
    """A checkpoint without its files, which are beside the manifest.

    The manifest does not have the values of a role's environment variables and headers.
    """

    schema_version: Literal["1.0"] = "1.0"
    rollout_id: str
    task_id: str
    task_digest: str
    node: str
    """The node of the rollout to resume from."""
    turn: int = Field(ge=0)
    """The next turn, or the running turn at an open question or a model call."""
    checkpoint_turn: int = Field(ge=0)
    """The turn in which the image was taken. A replay starts there."""
    ended: bool = False
    """Whether the agents had ended: the rollout then lacks only its grading."""
    ungraded_step: int | None = None
    """The step of the task to grade at the node, if the agents had ended."""
    fidelity: Fidelity
    ref: str
    layers: Mapping[str, str]
    """The digest of each layer, as in the rollout's log."""
    image: SandboxImage
    state: EnvState | None = None
    outside: OutsideState | None = None
    """The state of a world outside the sandbox."""
    sessions: tuple[SavedSession, ...] = ()
    services: Mapping[str, str] | None = None
    """Process ids of the services in a live image."""
    schedule: tuple[SavedTurn, ...]
    script: tuple[SavedExchange, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    calls_before: int = Field(default=0, ge=0)
    """The answered calls of the agent's work on the path to the image."""
    call: PendingCall | None = None
    """The model call that comes next, if the node was forked at one."""
    history: tuple[SavedStep, ...] = ()
    """The steps from the root to the node. A resumed trajectory begins with them."""
    taken_at: float
    """Seconds since the epoch."""
    seal: str = ""
    """The authentication code of the manifest, as `Planes.seal` makes it."""

    @property
    def live(self) -> bool:
        """Whether the image has processes."""
        return self.image.level == "live"

    @property
    def ask(self) -> Ask | None:
        """The open question at the node."""
        last = self.script[-1] if self.script else None
        return last.ask if last is not None and last.answer is None else None

    @property
    def in_turn(self) -> bool:
        """Whether the node is within a turn: at an open question, or at a model call."""
        return self.ask is not None or self.call is not None


def read_manifest(path: Path) -> CheckpointManifest:
    """Return the manifest of the saved checkpoint in the directory `path`.

    Raises:
        StoreError: The checkpoint is missing or incomplete.
    """
    try:
        return CheckpointManifest.model_validate_json((path / CHECKPOINT_FILE).read_bytes())
    except OSError as error:
        raise StoreError(
            f"no saved checkpoint in {str(path)!r}: {error.strerror}",
            hint="`bench checkpoint list` shows the saved checkpoints",
        ) from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = f"{path / CHECKPOINT_FILE}:{'.'.join(map(str, problem['loc']))}"
        raise StoreError(f"not a checkpoint: {problem['msg']}", where=where) from error


def saved_checkpoints(directory: Path) -> Iterator[tuple[Path, CheckpointManifest]]:
    """Yield the saved checkpoints of the rollout in `directory`, oldest first.

    An interrupted checkpoint is not listed: it does not have its final name.

    Raises:
        StoreError: A checkpoint is damaged.
    """
    home = directory / HOME
    paths = sorted(home.iterdir()) if home.is_dir() else []
    entries = [(path, read_manifest(path)) for path in paths if not path.name.startswith(".")]
    yield from sorted(entries, key=lambda entry: entry[1].taken_at)


def session_of(role: Role, snapshot: SessionSnapshot | SessionState) -> SavedSession:
    """Return the saved form of a session."""
    session = SavedSession(role=role.name, agent=role.agent, model=role.model)
    field = "snapshot" if isinstance(snapshot, SessionSnapshot) else "carry"
    return session.model_copy(update={field: snapshot})
