"""The exporter `inspect`: a `.eval` log for each agent and model, one epoch for each leaf.

Source of the format: inspect-ai 0.3.285, `inspect_ai.log`. The members are compressed by deflate,
which its readers accept beside their own zstd.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import Exported, FinishedRollout, RolloutNode

from .events import NO_MODEL, EventWriter, error_of, model_of, scores_of
from .messages import add_usage, conversation, output_of, usage_of
from .results import ScoreTotals
from .values import Json, encode, id_of, json_of, text_of, time_of

_THIN: Final = 1024
"""Inspect cuts the texts of summaries to this number of characters."""


class InspectExporter:
    """Logs that `inspect view` shows and `read_eval_log` reads.

    Each leaf is an epoch of the sample with the task's id. The first leaf of a tree has the whole
    tree as branches of its timeline. A leaf without a score is a sample with an error and without
    that score. The tokens of a shared prefix count in each of its leaves, and once in the totals
    of the log.
    """

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the logs; see `Exporter`."""
        logs: dict[tuple[str, str], _Log] = {}
        written = unscored = tampered = 0
        try:
            for rollout in rollouts:
                key = (rollout.agent, rollout.model or NO_MODEL)
                if key not in logs:
                    logs[key] = _Log(job, rollout, directory)
                for leaf in rollout.tree.leaves:
                    written += 1
                    unscored += leaf.reward is None
                    verdict = leaf.results.get("reward")
                    steered = verdict is not None and verdict.reward is not None
                    tampered += leaf.reward is None and steered
                logs[key].add(rollout)
        finally:
            for log in logs.values():
                log.close()
        return Exported(trajectories=written, unscored=unscored, tampered=tampered)


class _Log:
    """One log file, written sample by sample."""

    def __init__(self, job: str, first: FinishedRollout, directory: Path) -> None:
        self._job = text_of(job)
        self._agent, self._model = text_of(first.agent), model_of(first, None)
        self._id = id_of(job, first.agent, self._model)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{job}-{first.agent}")[:100].strip("-.")
        self._zip = zipfile.ZipFile(
            directory / f"{name}_{self._id}.eval", "w", zipfile.ZIP_DEFLATED
        )
        self._epochs: Counter[str] = Counter()
        self._summaries: list[Json] = []
        self._usage: dict[str, Json] = {}
        self._totals = ScoreTotals()
        self._times: list[float] = []

    def add(self, rollout: FinishedRollout) -> None:
        tree_id = text_of(rollout.tree.task_id)
        first = self._epochs[tree_id] + 1
        for leaf in rollout.tree.leaves:
            self._epochs[tree_id] += 1
            sample = _sample(rollout, leaf, tree_id, self._epochs[tree_id], first)
            self._member(f"samples/{tree_id}_epoch_{self._epochs[tree_id]}.json", sample)
            self._summaries.append(_summary(sample))
            self._totals.add(tree_id, sample["scores"] or {}, failed="error" in sample)
        for node in rollout.tree.nodes:
            _add_node_usage(self._usage, rollout, node)
        times = [node.step.started_at for node in rollout.tree.nodes if node.step is not None]
        self._times += [min([*times, rollout.finished_at]), rollout.finished_at]

    def close(self) -> None:
        with self._zip:
            spec = self._spec()
            step: Json = {"solver": self._agent, "params": {}, "params_passed": {}}
            plan: Json = {"name": "plan", "steps": [step], "config": {}}
            self._member("_journal/start.json", {"version": 2, "eval": spec, "plan": plan})
            self._member("_journal/summaries/1.json", self._summaries)
            self._member("summaries.json", self._summaries)
            self._member("reductions.json", self._totals.reductions())
            header: Json = {
                "version": 2,
                "status": "success",
                "eval": spec,
                "plan": plan,
                "results": self._totals.results(),
                "stats": self._stats(),
                "invalidated": False,
            }
            self._member("header.json", header)

    def _spec(self) -> Json:
        ids = list(self._epochs)
        created = min(self._times, default=0.0)
        dataset = {"name": self._job, "samples": len(ids), "sample_ids": ids, "shuffled": False}
        return {
            "eval_id": id_of(self._id, "eval"),
            "run_id": id_of(self._job, "run"),
            "created": time_of(created),
            "task": self._job,
            "task_id": self._id,
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "task_args_passed": {},
            "solver": self._agent,
            "solver_args": {},
            "solver_args_passed": {},
            "dataset": dataset,
            "model": self._model,
            "model_generate_config": {},
            "model_args": {},
            "config": {"epochs": max(self._epochs.values(), default=1)},
            "packages": {},
            "metadata": {"benchflow": {"job": self._job, "shared_prefix": "per_leaf"}},
            "scorers": self._totals.scorers(),
        }

    def _stats(self) -> Json:
        return {
            "started_at": time_of(min(self._times, default=0.0)),
            "completed_at": time_of(max(self._times, default=0.0)),
            "model_usage": self._usage,
            "role_usage": {},
        }

    def _member(self, name: str, document: object) -> None:
        # The time of the member is fixed: equal rollouts give equal bytes.
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16
        self._zip.writestr(info, encode(document))


def _sample(
    rollout: FinishedRollout, leaf: RolloutNode, sample_id: str, epoch: int, first: int
) -> Json:
    instruction = text_of(rollout.instruction)
    metadata = {"benchflow": json_of(_facts(rollout, leaf, first))}
    described: Json = {"input": instruction, "target": "", "id": sample_id, "metadata": metadata}
    # The scope of the events: a message has one id in a sample, as in Inspect's own logs.
    scope = f"{rollout.tree.rollout_id}/{leaf.id}"
    messages = conversation(leaf.steps, rollout.instruction, scope)
    answers = [each for each in messages if each["role"] == "assistant"]
    model = model_of(rollout, None)
    writer = EventWriter(rollout, leaf)
    events = writer.write(described, whole_tree=epoch == first)
    usage: dict[str, Json] = {}
    for node in leaf.path:
        _add_node_usage(usage, rollout, node)
    times = [node.step.started_at for node in leaf.path if node.step is not None]
    started = min([*times, rollout.finished_at])
    ended = leaf.step.finished_at if leaf.step is not None else rollout.finished_at
    sample: Json = {
        "id": sample_id,
        "epoch": epoch,
        "input": instruction,
        "target": "",
        "messages": messages,
        "output": output_of(answers[-1], model, "stop")
        if answers
        else {"model": model, "choices": [], "completion": ""},
        "scores": scores_of(leaf) or None,
        "metadata": metadata,
        "store": {},
        "events": events,
        "events_data": {"messages": writer.messages, "calls": []},
        "model_usage": usage,
        "role_usage": {},
        "started_at": time_of(started),
        "completed_at": time_of(ended),
        "total_time": max(0.0, ended - started),
        "uuid": id_of(rollout.tree.rollout_id, leaf.id),
        "attachments": {},
        "turn_count": len(answers),
    }
    problem = _problem(rollout, leaf)
    return sample if problem is None else {**sample, "error": error_of(problem)}


def _facts(rollout: FinishedRollout, leaf: RolloutNode, first: int) -> dict[str, Any]:
    verdict = leaf.results.get("reward")
    return {
        "rollout_id": rollout.tree.rollout_id,
        "leaf": leaf.id,
        "path": [node.id for node in leaf.path],
        "branch": [node.label for node in leaf.path if node.label is not None],
        "tree_epoch": first,
        "sandbox": rollout.sandbox,
        "task_digest": rollout.task_digest,
        "credit": None if leaf.credit is None else leaf.credit.model_dump(),
        "unscored": None if verdict is None or leaf.reward is not None else verdict.counted().error,
        "on_policy": not rollout.tree.meta.get("imported"),
    }


def _problem(rollout: FinishedRollout, leaf: RolloutNode) -> str | None:
    """Return why a leaf does not have a reward, or None."""
    if leaf.reward is not None:
        return None
    error = leaf.error or rollout.tree.error
    if error is not None:
        return f"{error.type}: {error.message}"
    verdict = leaf.results.get("reward")
    return "not scored" if verdict is None else verdict.counted().error


def _add_node_usage(totals: dict[str, Json], rollout: FinishedRollout, node: RolloutNode) -> None:
    if node.step is None:
        return
    calls = [rollout.calls[i] for i in node.step.model_calls if i in rollout.calls]
    for call in calls:
        add_usage(totals, model_of(rollout, call), usage_of(call.usage, call.cost_usd))
    if not calls and node.step.usage is not None:
        add_usage(totals, model_of(rollout, None), usage_of(node.step.usage))


def _summary(sample: Mapping[str, Any]) -> Json:
    kept = (
        *("id", "epoch", "target", "scores", "model_usage", "role_usage", "uuid", "turn_count"),
        *("started_at", "completed_at", "total_time"),
    )
    error = sample.get("error")
    summary: Json = {key: sample[key] for key in kept}
    summary |= {"input": sample["input"][:_THIN], "metadata": {}, "completed": True, "retries": 0}
    summary["message_count"] = len(sample["messages"])
    return summary if error is None else {**summary, "error": error["message"][:_THIN]}
