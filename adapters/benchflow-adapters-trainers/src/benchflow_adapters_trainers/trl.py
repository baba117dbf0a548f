"""Rollouts for TRL: a worker of `AsyncGRPOTrainer`, and a `rollout_func` of `GRPOTrainer`.

Source of the formats: trl 1.16.0, `RolloutWorkerProtocol` and `RolloutSample` of
`trl.experimental.async_grpo`, and `trl.trainer.grpo_trainer`. TRL marks both as experimental.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from importlib import import_module
from typing import Any, Final

from benchflow_contracts import BenchFlowError, Sample, UsageError
from benchflow_export import (
    CreditRow,
    ExcludedLeaf,
    GroupServer,
    GroupSource,
    RolloutGroup,
    TrainerOptions,
    credit_rows,
)

from .response import LoopThread, RequestedRow, check_options, request_groups, requested_rows

_POLL_SEC: Final = 0.05
"""Seconds between two attempts to put a row into the full queue of the trainer."""
_TICK_SEC: Final = 1.0
_STOP_SEC: Final = 60.0
"""Seconds for rollouts that are cancelled."""


class GroupWorker:
    """A `rollout_worker` of TRL's `AsyncGRPOTrainer`: rows of groups with BenchFlow's advantages.

    A thread takes the groups of `source` and puts a row for each sequence and advantage into
    `rollout_buffer`, at most `queue_size` before the trainer takes them. The advantage of a row is
    the estimator of `options`, and its version the oldest weights that sampled it: TRL drops what
    is older than its `max_staleness`. A leaf that is not trained on is counted in `metrics_queue`,
    as `benchflow/excluded_REASON_total`.

    TRL trains on each row: `options.shared_prefix` says whether the common tokens of a tree are in
    the rows of one leaf or of all.
    """

    def __init__(
        self,
        source: GroupSource,
        options: TrainerOptions | None = None,
        *,
        queue_size: int = 256,
    ) -> None:
        self._source = source
        self._options = options or TrainerOptions()
        if self._options.estimator == "none":
            raise UsageError("TRL needs an advantage, not 'none'", hint="choose intra or inter")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=queue_size)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(maxsize=4096)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taker: asyncio.Task[None] | None = None
        self._ended: BaseException | None = None
        self._has_ended = False
        self._ticked = time.monotonic()
        self._groups = 0

    def start(self) -> None:
        """Begin to take groups. A worker can be started once."""
        if self._thread is not None:
            raise UsageError("the worker was started before", hint="make a new worker")
        make = _sample_type()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(make,), name="benchflow-rollouts", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Cancel the rollouts that run, and wait for their end. Calls after the first do nothing.

        Raises:
            BenchFlowError: The source does not end in a minute.
        """
        self._stopping.set()
        if self._thread is None:
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop may have ended already.
                self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(timeout=_STOP_SEC)
        if self._thread.is_alive():
            raise BenchFlowError(
                f"the source of rollouts did not end in {_STOP_SEC:.0f} s",
                hint="end the program; the next start deletes what the rollouts left",
            )

    def update_model_version(self, model_version: int) -> None:
        """Use the new weights for new rollouts."""
        self._source.set_policy_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if the trainer would wait for rows that do not come.

        A source whose rollouts take long is healthy: `stale_after_s` counts from the last sign of
        its event loop.

        Raises:
            BenchFlowError: The source failed, or it ended and the trainer wants more.
        """
        if self._has_ended and self.rollout_buffer.empty():
            if self._ended is not None:
                raise BenchFlowError(
                    f"the source of rollouts failed: {self._ended}", hint="see the cause"
                ) from self._ended
            raise BenchFlowError(
                f"the source of rollouts ended after {self._groups} groups",
                hint="set max_steps to the rows that it has, or give more rollouts",
            )
        silent = time.monotonic() - self._ticked
        if self._thread is not None and not self._has_ended and silent > stale_after_s:
            raise BenchFlowError(
                f"the source of rollouts has blocked its event loop for {silent:.0f} s"
            )

    def _run(self, make: Callable[..., Any]) -> None:
        try:
            asyncio.run(self._take_groups(make))
        except BaseExceptionGroup as errors:
            self._ended = errors.exceptions[0]
        except BaseException as error:  # noqa: BLE001 - check_health raises the error
            self._ended = error
        finally:
            self._has_ended = True

    async def _take_groups(self, make: Callable[..., Any]) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            self._taker = tasks.create_task(self._fill(make))
            if self._stopping.is_set():
                self._cancel()
            while not self._taker.done():
                self._ticked = time.monotonic()
                await asyncio.wait([self._taker], timeout=_TICK_SEC)

    def _cancel(self) -> None:
        if self._taker is not None:
            self._taker.cancel()

    async def _fill(self, make: Callable[..., Any]) -> None:
        async with aclosing(self._source.groups()) as groups:
            async for group in groups:
                rows, excluded = credit_rows(group, self._options)
                self._count(group, excluded, rows)
                for row in rows:
                    await self._put(_rollout_sample(make, row, self._groups))
                self._groups += 1

    async def _put(self, sample: Any) -> None:  # noqa: ANN401 - TRL's class
        while True:
            with suppress(queue.Full):
                sample.enqueued_at = time.time()
                self.rollout_buffer.put_nowait(sample)
                return
            await asyncio.sleep(_POLL_SEC)

    def _count(
        self, group: RolloutGroup, excluded: Iterable[ExcludedLeaf], rows: Sequence[CreditRow]
    ) -> None:
        counts = group.counts()
        for leaf in excluded:
            name = f"excluded_{leaf.reason.replace('-', '_')}"
            counts[name] = counts.get(name, 0) + 1
            counts["samples"] -= 1
        counts["rows"] = len(rows)
        # TRL adds up a metric that has the word `total`.
        metrics = {f"benchflow/{name}_total": float(n) for name, n in counts.items()}
        with suppress(queue.Full):
            self.metrics_queue.put_nowait(metrics)


def _sample_type() -> Callable[..., Any]:
    try:
        module = import_module("trl.experimental.async_grpo.async_rollout_worker")
    except ImportError as error:
        raise UsageError(
            f"cannot import TRL: {error}", hint="pip install trl==1.16.0 in this environment"
        ) from error
    return module.RolloutSample  # type: ignore[no-any-return]


def _rollout_sample(make: Callable[..., Any], row: CreditRow, group: int) -> Any:  # noqa: ANN401
    numpy = import_module("numpy")
    sample = row.sample
    messages = [dict(span.message) for span in row.messages]
    return make(
        prompt=messages[: row.prompt_messages],
        completion=messages[row.prompt_messages :],
        input_ids=numpy.asarray(row.token_ids, dtype=numpy.int64),
        completion_mask=numpy.asarray(row.loss_mask, dtype=numpy.int64),
        old_log_probs=numpy.asarray(row.logprobs, dtype=numpy.float32),
        advantage=row.advantage,
        model_version=row.version,
        group_id=group,
        metrics={"reward": sample.reward, **_items(sample), **_answer_weight(sample)},
    )


def _answer_weight(sample: Sample) -> dict[str, float]:
    """Return the weight of a leaf that the task's user does not always lead to."""
    weight = sample.answer_weight
    return {} if weight is None or weight == 1 else {"benchflow/answer_weight": weight}


def _items(sample: Sample) -> dict[str, float]:
    return {f"rewards/{name}": value for name, value in sample.items.items()}


class RolloutFunction:
    """A `rollout_func` of TRL's `GRPOTrainer`. A prompt is the id of a task.

    The dataset is `prompt_rows(tasks)`, and `reward_funcs` is `completion_reward`. Equal prompts
    that follow each other are one request to the server. Each prompt gets one leaf. TRL computes
    the advantages from the returns. A leaf that is not trained on has zeros in `env_mask`; the
    reward of a lost one is `None`, which TRL leaves out of the baseline. The common tokens of a
    tree are trained on once for each leaf.
    """

    def __init__(self, server: GroupServer, options: TrainerOptions | None = None) -> None:
        self._server = server
        self._options = check_options(options or TrainerOptions(), "TRL's GRPOTrainer")
        self._loop = LoopThread()
        self.excluded: list[ExcludedLeaf] = []
        """The leaves of the last call that are not trained on."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:  # noqa: ANN401
        """Return `prompt_ids`, `completion_ids`, `logprobs`, `env_mask` and `benchflow_reward`.

        Raises:
            BenchFlowError: The server does not have a task, or all rollouts are lost.
        """
        tasks = [_task_of(prompt) for prompt in prompts]
        self._server.set_policy_version(int(trainer.state.global_step))
        filler = int(trainer.processing_class.pad_token_id)
        rows = self._loop.run(self._request(tasks, filler))
        self.excluded = [row.excluded for row in rows if row.excluded is not None]
        if len(self.excluded) == len(rows):
            raise BenchFlowError(
                f"none of {len(rows)} rollouts can be trained on: {self.excluded[0]}",
                hint="see the attribute `excluded` of the function",
            )
        return {
            "prompt_ids": [row.parts[0].prompt_ids for row in rows],
            "completion_ids": [row.parts[0].response_ids for row in rows],
            "logprobs": [row.parts[0].logprobs for row in rows],
            "env_mask": [row.parts[0].response_mask for row in rows],
            "benchflow_reward": [row.reward for row in rows],
        }

    def close(self) -> None:
        """End the thread of the function."""
        self._loop.close()

    async def _request(self, tasks: Sequence[str], filler: int) -> list[RequestedRow]:
        sizes = [(task, len(list(same))) for task, same in itertools.groupby(tasks)]
        groups = await request_groups(self._server, sizes)
        return [
            row
            for (_, size), group in zip(sizes, groups, strict=True)
            for row in requested_rows(group, size, filler)
        ]


def prompt_rows(tasks: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a dataset for `GRPOTrainer`: the id of each task is its prompt."""
    return [{"prompt": task} for task in tasks]


def completion_reward(
    completions: Sequence[Any], benchflow_reward: Sequence[float | None], **_: object
) -> list[float | None]:
    """Return the rewards that `RolloutFunction` got; a reward function of `GRPOTrainer`."""
    del completions
    return list(benchflow_reward)


def _task_of(prompt: Any) -> str:  # noqa: ANN401 - from a dataset of the trainer
    if isinstance(prompt, str):
        return prompt
    raise UsageError(
        f"a prompt is not the id of a task: {str(prompt)[:100]!r}",
        hint="make the dataset with prompt_rows(tasks)",
    )
