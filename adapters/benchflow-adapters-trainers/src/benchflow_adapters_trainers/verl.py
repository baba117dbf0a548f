"""Rollouts for verl: an agent loop.

Source of the format: verl 0.9.1, `AgentLoopBase`, `AgentLoopOutput` and `AgentLoopWorker` of
`verl.experimental.agent_loop.agent_loop`.
"""

from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, Sample, UsageError
from benchflow_export import GroupServer, ResponseRow, version_range

from .response import RequestedRow, RowLimits, requested_rows

TASK_COLUMN: Final = "task_id"


class LostRolloutError(BenchFlowError):
    """A row of a batch has no rollout that can be trained on."""


class SampleAgentLoop:
    """An `AgentLoopBase` of verl. The column `task_id` of the dataset names the task of a row.

    Name the class in the file of `agent_loop_config_path`:

        - name: benchflow
          _target_: benchflow_adapters_trainers.verl.SampleAgentLoop
          server: my_module:make_server

    verl makes an agent loop for each row. `make_server` takes no arguments, returns a GroupServer,
    and is called once in each process.

    Each row requests one rollout and gets its first leaf. verl computes the advantages from the
    returns. `server` says what is not trained on, by its TrainerOptions.

    A row that must not be trained on, such as a truncated one, has its return and a mask of zeros.
    A row without a return ends the batch with a LostRolloutError after `attempts` requests. With
    `lost_reward`, the row has that reward instead, and a mask of zeros: verl's baselines count the
    reward, so the number is yours to choose. verl's trainer with the transfer queue drops the other
    rows of a prompt whose row ended with an error.

    With `allow_breaks`, a sample with a break gives a list of outputs, one for each sequence, which
    only that trainer takes. Without it, the sample is not trained on.
    """

    def __init__(
        self,
        trainer_config: Any,  # noqa: ANN401
        server_manager: Any,  # noqa: ANN401
        tokenizer: Any,  # noqa: ANN401
        *,
        server: str | GroupServer,
        attempts: int = 2,
        lost_reward: float | None = None,
        allow_breaks: bool = False,
        **_: Any,  # noqa: ANN401
    ) -> None:
        del server_manager
        if attempts < 1:
            raise UsageError(f"attempts is {attempts}", hint="request each row at least once")
        self._server = _server_at(server) if isinstance(server, str) else server
        self._attempts = attempts
        self._lost_reward = lost_reward
        self._allow_breaks = allow_breaks
        rollout = trainer_config.config.actor_rollout_ref.rollout
        self._limits = RowLimits(int(rollout.prompt_length), int(rollout.response_length))
        self._filler = int(tokenizer.pad_token_id or 0)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:  # noqa: ANN401
        """Return the `AgentLoopOutput` of a row, or a list of them; see `allow_breaks`.

        `extra_fields` have `min_global_steps` and `max_global_steps`, the oldest and newest weights
        that sampled the row. Both are `None` if neither the calls nor the group name them.

        Raises:
            UsageError: The row does not name its task, or verl is not installed.
            LostRolloutError: No rollout of the task can be trained on.
        """
        del sampling_params
        task = row.get(TASK_COLUMN)
        if not isinstance(task, str):
            raise UsageError("a row does not name its task", hint=f"add the column {TASK_COLUMN}")
        if "global_steps" in row:
            self._server.set_policy_version(int(row["global_steps"]))
        found, version = await self._request(task)
        shape = _expert_shape(self._server, found)
        outputs = _outputs(found, self._lost_reward, version, shape)
        return outputs[0] if len(outputs) == 1 else outputs

    async def _request(self, task: str) -> tuple[RequestedRow, int | None]:
        row, version = await self._attempt(task)
        for _ in range(self._attempts - 1):
            if row.reward is not None:
                break
            row, version = await self._attempt(task)
        if row.reward is None and self._lost_reward is None:
            raise LostRolloutError(
                f"task {task!r}: {row.excluded}",
                hint="set lost_reward to mask such rows, or mend the rollouts",
                retryable=True,
            )
        return row, version

    async def _attempt(self, task: str) -> tuple[RequestedRow, int | None]:
        group = await self._server.request(task, 1)
        [row] = requested_rows(
            group, 1, self._filler, limits=self._limits, allow_breaks=self._allow_breaks
        )
        return row, group.policy_version


@cache
def _server_at(path: str) -> GroupServer:
    module, _, name = path.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"cannot import the server {path!r}: {error}", hint="name it as module:function"
        ) from error
    return cast("GroupServer", make())


_Shape = tuple[int, int]
_expert_shapes: dict[int, tuple[GroupServer, _Shape]] = {}
"""Layers and experts of each layer, of servers whose rows have them. By `id`: a server need not
be hashable. The entry keeps the server, so its `id` stays its own."""


def _expert_shape(server: GroupServer, row: RequestedRow) -> _Shape | None:
    """Return the layers and the experts of each layer, of this row or of an earlier one.

    verl joins the arrays of a batch, and fails if one row has none.

    Raises:
        LostRolloutError: Earlier rows had experts, and this one, which is trained on, lacks them.
    """
    for part in row.parts:
        if part.routed_experts is not None:
            first = part.routed_experts[0]
            _expert_shapes[id(server)] = (server, (len(first), len(first[0])))
        elif id(server) in _expert_shapes and any(part.response_mask):
            raise LostRolloutError(
                "a row has no experts of its tokens, and earlier rows had them: verl cannot join"
                " them to a batch",
                hint="let the engine return the experts of every token, also of cached prefixes",
                retryable=True,
            )
    _, shape = _expert_shapes.get(id(server), (server, None))
    return shape


def _outputs(
    row: RequestedRow,
    lost_reward: float | None,
    version: int | None,
    shape: _Shape | None,
) -> list[Any]:
    module = _agent_loop_module()
    sample = row.sample
    versions = None if sample is None else version_range(sample.policy_versions)
    oldest, newest = (version, version) if versions is None else versions
    return [
        module.AgentLoopOutput(
            prompt_ids=part.prompt_ids,
            response_ids=part.response_ids,
            response_mask=part.response_mask,
            response_logprobs=part.logprobs,
            **_experts(part, shape),
            reward_score=lost_reward if row.reward is None else row.reward,
            num_turns=0 if sample is None else _turns(sample),
            metrics=module.AgentLoopMetrics(generate_sequences=row.seconds),
            extra_fields={
                "min_global_steps": oldest,
                "max_global_steps": newest,
                "reward_extra_info": {},
                **row.labels,
            },
        )
        for part in row.parts
    ]


def _experts(part: ResponseRow, shape: _Shape | None) -> dict[str, Any]:
    if shape is None:
        return {}
    length, numpy = len(part.prompt_ids) + len(part.response_ids), import_module("numpy")
    if part.routed_experts is None:
        return {"routed_experts": numpy.zeros((length, *shape), "int16")}
    # verl takes an array of numpy or torch, and no lists.
    return {"routed_experts": numpy.asarray(part.routed_experts, "int16")}


def _agent_loop_module() -> Any:  # noqa: ANN401
    try:
        module = import_module("verl.experimental.agent_loop.agent_loop")
    except ImportError as error:
        raise UsageError(
            f"cannot import verl: {error}", hint="pip install verl==0.9.1 in this environment"
        ) from error
    # verl calls `run`; a user may also ask for the type.
    module.AgentLoopBase.register(SampleAgentLoop)
    return module


def _turns(sample: Sample) -> int:
    return sum(span.message.get("role") != "system" for span in sample.spans)
