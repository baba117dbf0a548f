"""Eval jobs beside production: their rollouts, scored by the rewards of production."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    BenchFlowError,
    FinishedRollout,
    RolloutNode,
    RolloutRecord,
    RolloutTree,
    Step,
    VerifyResult,
)
from benchflow_store import latest_records, read_finished_rollouts
from benchflow_traces import ObservedRollout

from .config import EvalTable, MonitorConfig
from .database import FoldedRollout, MonitorDatabase, Score
from .facts import Price, facts_of
from .scoring import OnlineScorer
from .work_thread import WorkThread

VERDICT: Final = "verdict"
"""The source of the eval's own reward. Production does not have this reward."""
_ENDED: Final = frozenset({"completed", "ungraded", "failed"})
_logger = logging.getLogger(__name__)


class EvalImporter:
    """Keeps the rollouts of `[[evals]]` in the database. Each leaf of a tree counts as one.

    A rollout that ended is read once. It is read again if its record or `monitor.toml` changed.
    """

    def __init__(
        self,
        location: Path | str,
        config: MonitorConfig,
        scorer: OnlineScorer,
        jobs_dir: Path,
        *,
        thread: WorkThread | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._location = location
        self._tables = config.evals
        self._digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
        self._prices: Mapping[str, Price] = {
            model: Price(table.input, table.output, table.cached)
            for model, table in config.prices.items()
        }
        self._scorer = scorer
        self._jobs_dir = jobs_dir
        self._thread = thread or WorkThread()
        self._clock = clock

    async def update(self) -> int:
        """Store what is new, and delete what no job has. Return the number of leaves stored.

        Raises:
            StoreError: The database failed. A job that cannot be read is logged.
        """
        stored = 0
        known = await self._thread.run(self._marks)
        found: set[str] = set()
        for table in self._tables:
            for record in await self._thread.run(self._records, table):
                mark = self._mark(table, record)
                prefix = _prefix(table, record)
                names = {name for name in known if name.startswith(prefix)}
                if names and {known[name] for name in names} == {mark}:
                    found |= names
                    continue
                leaves = await self._thread.run(self._read, table, record)
                folded = [await self._scored(leaf, verdict) for leaf, verdict in leaves]
                await self._thread.run(self._keep, table.job, mark, folded)
                found |= {one.rollout.id for one in folded}
                stored += len(folded)
        if gone := set(known) - found:
            await self._thread.run(self._delete, gone)
        return stored

    def _records(self, table: EvalTable) -> list[RolloutRecord]:
        job = self._jobs_dir / table.job
        try:
            records = latest_records(job).values()
        except BenchFlowError as error:
            _logger.warning("the eval %s cannot be read: %s", table.job, error)
            return []
        is_chosen = table.variant is None
        return [
            record
            for record in records
            if record.status in _ENDED and (is_chosen or record.variant == table.variant)
        ]

    def _mark(self, table: EvalTable, record: RolloutRecord) -> str:
        text = f"{self._digest} {table.model_dump_json()} {record.finished_at} {record.attempt}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _read(
        self, table: EvalTable, record: RolloutRecord
    ) -> list[tuple[ObservedRollout, VerifyResult | None]]:
        try:
            (rollout,) = read_finished_rollouts(self._jobs_dir / table.job, [record])
        except BenchFlowError as error:
            _logger.warning("%s of the eval %s: %s", record.rollout_id, table.job, error)
            return []
        return list(_leaves(table, record, rollout))

    async def _scored(
        self, rollout: ObservedRollout, verdict: VerifyResult | None
    ) -> FoldedRollout:
        scores = await self._scorer.score(rollout)
        if verdict is not None:
            scores.append(Score(VERDICT, verdict))
        return FoldedRollout(rollout, facts_of(rollout, self._prices), scores, is_closed=True)

    def _marks(self) -> Mapping[str, str]:
        database = MonitorDatabase(self._location)
        try:
            return database.eval_marks()
        finally:
            database.close()

    def _keep(self, job: str, mark: str, folded: Sequence[FoldedRollout]) -> None:
        database = MonitorDatabase(self._location)
        try:
            database.keep_evals(job, mark, folded, self._clock())
        finally:
            database.close()

    def _delete(self, keys: set[str]) -> None:
        database = MonitorDatabase(self._location)
        try:
            database.delete_evals(keys)
        finally:
            database.close()


def _prefix(table: EvalTable, record: RolloutRecord) -> str:
    service = f"{table.service}/{table.environment}/{table.version or ''}"
    return f"eval:{service}:{table.job}/{record.rollout_id}/"


def _leaves(
    table: EvalTable, record: RolloutRecord, rollout: FinishedRollout
) -> Iterator[tuple[ObservedRollout, VerifyResult | None]]:
    """Yield each path of a tree as the only path of a rollout, and the verdict on its leaf."""
    version = table.version if table.version is not None else record.variant or ""
    for leaf in rollout.tree.leaves:
        steps = [_with_model(step, record.model) for step in leaf.steps]
        name = f"{_prefix(table, record)}{leaf.id}"
        # A path waits for its siblings. Its own time is that of its steps.
        seconds = sum(max(0.0, step.finished_at - step.started_at) for step in steps)
        observed = ObservedRollout(
            id=name,
            tree=_linear(name, rollout.tree, leaf, steps),
            service=table.service,
            version=version,
            environment=table.environment,
            models=() if record.model is None else (record.model,),
            dialects=("eval",),
            started_at=record.finished_at - seconds,
            ended_at=record.finished_at,
            complete=True,
            spans=0,
            unknown_spans=0,
            questions=sum(step.ask is not None for step in steps),
        )
        verdict = leaf.results.get("reward")
        yield observed, None if verdict is None else verdict.counted()


def _with_model(step: Step, model: str | None) -> Step:
    # The cost of a step follows from its model and its usage.
    if step.usage is None or model is None:
        return step
    return step.model_copy(update={"meta": {**step.meta, "model": model}})


def _linear(name: str, tree: RolloutTree, leaf: RolloutNode, steps: Sequence[Step]) -> RolloutTree:
    root = RolloutNode(id="root")
    index, node = {root.id: root}, root
    for number, step in enumerate(steps):
        child = RolloutNode(id=f"n{number}", parent=node, step=step)
        node.children.append(child)
        index[child.id] = node = child
    node.error = leaf.error or tree.error
    return RolloutTree(
        rollout_id=name, task_id=tree.task_id, root=root, index=index, status=tree.status
    )
