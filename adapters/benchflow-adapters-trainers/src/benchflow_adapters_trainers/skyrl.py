"""Rollouts for SkyRL: a generator of its trainers.

Source of the format: skyrl 0.3.0, `GeneratorInterface`, `GeneratorInput` and `GeneratorOutput` of
`skyrl.train.generators.base`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import UsageError
from benchflow_export import GroupServer, ResponseRow, RolloutGroup, TrainerOptions

from .response import RequestedRow, check_options, request_groups, requested_rows, row_counts


@dataclass(frozen=True, slots=True)
class _Member:
    """One input of a batch: its place, and what it asks for."""

    at: int
    task: str
    trajectory: Any
    """SkyRL's `TrajectoryID`, or `None`."""


class SampleGenerator:
    """A `GeneratorInterface` of SkyRL. `env_extras[i]["task_id"]` names the task of each input.

    The inputs of one `instance_id` are a group: one request to the server. The output is in the
    order of the inputs. SkyRL computes the advantages from the returns. An input without a sample
    has a mask of zeros and the reason in `env_metrics`; if the rollout is lost, its reward is the
    mean of its group, so that the baseline of the others stays. The common tokens of a tree are
    trained on once for each leaf.

    With `step_wise`, as in `generator.step_wise_trajectories`, a sample with a break has one row
    for each sequence. Without it such a sample is not trained on.
    """

    def __init__(
        self,
        server: GroupServer,
        options: TrainerOptions | None = None,
        *,
        step_wise: bool = False,
        filler_token: int = 0,
    ) -> None:
        self._server = server
        self._options = check_options(options or TrainerOptions(), "SkyRL")
        self._step_wise = step_wise
        self._filler = filler_token

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the output for a `GeneratorInput`; a `GeneratorOutput`.

        Raises:
            UsageError: An input does not name its task, or `step_wise` lacks trajectory ids.
            BenchFlowError: The server does not have a task.
        """
        metadata = input_batch.get("batch_metadata")
        if metadata is not None:
            self._server.set_policy_version(int(metadata.global_step))
        groups = _groups_of(input_batch, needs_ids=self._step_wise)
        made = await request_groups(
            self._server, ((members[0].task, len(members)) for members in groups)
        )
        rows: list[tuple[_Member, RequestedRow, float]] = []
        counts: Counter[str] = Counter()
        for members, group in zip(groups, made, strict=True):
            rows += self._rows(members, group, counts)
        rows.sort(key=lambda row: row[0].at)
        return _output(rows, counts, step_wise=self._step_wise)

    def _rows(
        self, members: Sequence[_Member], group: RolloutGroup, counts: Counter[str]
    ) -> list[tuple[_Member, RequestedRow, float]]:
        rows = requested_rows(group, len(members), self._filler, allow_breaks=self._step_wise)
        counts.update(row_counts(group, rows))
        known = [row.reward for row in rows if row.reward is not None]
        baseline = sum(known) / len(known) if known else 0.0
        return [
            (member, row, baseline if row.reward is None else row.reward)
            for member, row in zip(members, rows, strict=True)
        ]


def _groups_of(batch: Mapping[str, Any], *, needs_ids: bool) -> list[list[_Member]]:
    unnamed: list[Mapping[str, Any]] = [{}] * len(batch["prompts"])
    extras: Sequence[Mapping[str, Any]] = batch.get("env_extras") or unnamed
    ids: Sequence[Any] | None = batch.get("trajectory_ids")
    if ids is None and needs_ids:
        raise UsageError("step-wise training needs trajectory_ids", hint="let SkyRL make the batch")
    groups: dict[object, list[_Member]] = {}
    for at, extra in enumerate(extras):
        task = extra.get("task_id")
        if not isinstance(task, str):
            raise UsageError(
                f"input {at} does not name its task", hint="add the column task_id to the dataset"
            )
        trajectory = None if ids is None else ids[at]
        key = task if trajectory is None else trajectory.instance_id
        groups.setdefault(key, []).append(_Member(at, task, trajectory))
    return list(groups.values())


def _expert_indices(parts: Sequence[ResponseRow]) -> list[list[list[list[int]]]] | None:
    """Return the experts of each token; `None` if a row that is trained on lacks them.

    SkyRL reads an empty list as zeros, and no loss is computed for a row without a mask.
    """
    known = [part.routed_experts for part in parts]
    lacking = [part for part in parts if part.routed_experts is None]
    if len(lacking) == len(parts) or any(any(part.response_mask) for part in lacking):
        return None
    return [rows or [] for rows in known]


def _output(
    rows: Sequence[tuple[_Member, RequestedRow, float]], counts: Counter[str], *, step_wise: bool
) -> dict[str, Any]:
    parts: list[ResponseRow] = []
    output: dict[str, Any] = {
        name: []
        for name in (
            *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"),
            *("rollout_logprobs", "trajectory_ids", "is_last_step", "env_metrics"),
        )
    }
    for member, row, reward in rows:
        for part in row.parts:
            parts.append(part)
            output["rewards"].append(reward)
            output["stop_reasons"].append(_stop_reason(row))
            output["trajectory_ids"].append(member.trajectory)
            output["is_last_step"].append(part is row.parts[-1])
            output["env_metrics"].append(row.labels)
    output["prompt_token_ids"] = [part.prompt_ids for part in parts]
    output["response_ids"] = [part.response_ids for part in parts]
    output["loss_masks"] = [part.response_mask for part in parts]
    output["rollout_logprobs"] = [part.logprobs for part in parts]
    if not step_wise:
        output["is_last_step"] = None
    if any(member.trajectory is None for member, _, _ in rows):
        output["trajectory_ids"] = None
    return {
        **output,
        "rollout_metrics": {f"benchflow/{name}": float(n) for name, n in counts.items()},
        "trajectory_generation_times": [row.seconds for _, row, _ in rows],
        "rollout_expert_indices": _expert_indices(parts),
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _stop_reason(row: RequestedRow) -> str:
    if row.excluded is not None and row.reward is None:
        return "error"
    return "length" if row.is_truncated else "stop"
