"""Add the agent's steps to the tree."""

from collections.abc import Sequence

from benchflow_contracts import ModelCall, Step, StoreError, Usage

from benchflow_kernel.branch import Replay
from benchflow_kernel.scenes import LoweredTurn

from .progress import BranchContext, Interruption, Progress


class StepRecorder:
    """Adds each new step of one branch to the tree.

    A step gets the role, the skills and the prompt of its turn, and each model call of the
    branch goes to one step. Steps that repeat recorded ones are in the tree already.
    """

    def __init__(
        self, branch: BranchContext, progress: Progress, replay: Replay, interruption: Interruption
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._interruption = interruption
        self._assigned = 0
        """How many model calls belong to steps that are in the tree."""
        self.prompt: str | None = None
        """The prompt that the next step answers."""

    def record(self, step: Step) -> None:
        """Add `step` below the last node. If the record cannot be written, end the branch."""
        prompt, self.prompt = self.prompt, None
        if self._interruption.reason is not None:
            return
        progress, start, journal = self._progress, self._branch.start, self._branch.journal
        calls = self._branch.world.calls
        if not self._replay.live:
            self._assigned = len(calls)
            return
        is_first = start.id != start.node and progress.tip == start.node
        node = start.id if is_first else journal.new_id()
        label = start.label if is_first else None
        attributed = _with_turn(step, progress.current, prompt, self._own_calls(step, calls))
        try:
            journal.step(progress.tip, node, attributed, label)
        except StoreError as error:
            self._interruption.interrupt(error)
        else:
            progress.tip = node

    def _own_calls(self, step: Step, calls: Sequence[ModelCall]) -> Sequence[ModelCall]:
        """Return the model calls that were made for `step`.

        A tool returns its result after the call that asked for the tool, and before the next
        call. A step that ends a turn, or that waits for an answer, gets all remaining calls.
        """
        fresh = calls[self._assigned :]
        if step.stop_reason is None and step.ask is None:
            later = (at for at, call in enumerate(fresh) if call.finished_at > step.finished_at)
            fresh = fresh[: next(later, len(fresh))]
        self._assigned += len(fresh)
        return fresh


def _with_turn(
    step: Step, turn: LoweredTurn, prompt: str | None, calls: Sequence[ModelCall]
) -> Step:
    role = turn.role
    update: dict[str, object] = {}
    if step.role != role.name:
        update["role"] = role.name
    if step.skills != role.skills:
        update["skills"] = role.skills
    if step.prompt is None and prompt is not None:
        update["prompt"] = prompt
    if calls:
        update["model_calls"] = tuple(call.id for call in calls)
        update["usage"] = _usage(calls)
    return step.model_copy(update=update) if update else step


def _usage(calls: Sequence[ModelCall]) -> Usage:
    return Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cached_tokens=sum(call.usage.cached_tokens for call in calls),
    )
