"""A step as the tree has it: with its turn's role, skills and prompt, and its model calls."""

from collections.abc import Sequence

from benchflow_contracts import ModelCall, Step, Usage

from benchflow_kernel.scenes import LoweredTurn


class Attribution:
    """Gives each model call of one line to the step that it was made for, once."""

    def __init__(self) -> None:
        self._given = 0

    def skip(self, calls: Sequence[ModelCall]) -> None:
        """Leave out the calls so far: they belong to steps that are in the tree."""
        self._given = len(calls)

    def step(
        self, step: Step, turn: LoweredTurn, opening: str | None, calls: Sequence[ModelCall]
    ) -> Step:
        """Return `step` as it goes into the tree; `opening` is the prompt that it answers."""
        role = turn.role
        update: dict[str, object] = {}
        if step.role != role.name:
            update["role"] = role.name
        if step.skills != role.skills:
            update["skills"] = role.skills
        if step.prompt is None and opening is not None:
            update["prompt"] = opening
        own = self._own(step, calls)
        if own:
            update["model_calls"] = tuple(call.id for call in own)
            update["usage"] = _usage(own)
        return step.model_copy(update=update) if update else step

    def _own(self, step: Step, calls: Sequence[ModelCall]) -> Sequence[ModelCall]:
        """Return the calls behind `step`.

        A tool's result comes after the call that asked for it was answered, and before
        the next one is. What ends a turn, or waits for an answer, takes all the rest.
        """
        fresh = calls[self._given :]
        if step.stop_reason is None and step.ask is None:
            later = (at for at, call in enumerate(fresh) if call.finished_at > step.finished_at)
            fresh = fresh[: next(later, len(fresh))]
        self._given += len(fresh)
        return fresh


def _usage(calls: Sequence[ModelCall]) -> Usage:
    return Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cached_tokens=sum(call.usage.cached_tokens for call in calls),
    )
