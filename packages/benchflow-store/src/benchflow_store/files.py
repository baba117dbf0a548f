"""The one writer of a rollout's files. The kernel writes only the event log and the tree."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pydantic_core
from benchflow_contracts import (
    Event,
    Granularity,
    PhaseEntered,
    RewardEvent,
    RolloutRecord,
    RolloutTree,
    Step,
    StoreError,
    Task,
    VerifyResult,
    WorldClosed,
)

from .record import RanWith
from .sealed_config import seal_config

_LINES: Final = json.JSONEncoder(ensure_ascii=False)


def acp_events(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    """Yield one record for each message, tool call, question and answer, in order.

    Record types: `user_message`, `agent_thought` and `agent_message` with `text`;
    `tool_call` with its result; `ask` and `answer`.
    """
    for step in steps:
        if step.answer is not None:
            yield {"type": "answer", **step.answer.model_dump(mode="json")}
        if step.prompt is not None:
            yield {"type": "user_message", "text": step.prompt}
        if step.reasoning:
            yield {"type": "agent_thought", "text": step.reasoning}
        if step.message:
            yield {"type": "agent_message", "text": step.message}
        yield from _tool_calls(step)
        if step.ask is not None:
            yield {"type": "ask", **step.ask.model_dump(mode="json", exclude={"raw"})}


def _tool_calls(step: Step) -> Iterator[dict[str, Any]]:
    observations = {observation.tool_call_id: observation for observation in step.observations}
    for call in step.tool_calls:
        observation = observations.get(call.id)
        yield {
            "type": "tool_call",
            "tool_call_id": call.id,
            "kind": call.kind,
            "title": call.title,
            "status": observation.status if observation else "pending",
            "content": observation.content if observation else "",
            "raw_input": call.raw_input,
            "raw_output": observation.raw_output if observation else None,
        }


def phase_times(events: Sequence[Event], tree: RolloutTree) -> dict[str, Any]:
    """Return the seconds of each phase by world, of the forks, and of the whole rollout.

    A phase ends when the next phase of the same world begins. The last phase ends with the
    teardown of the world. `forks` has the `took_sec` of each node that a fork created.
    """
    forks = {node.id: node.took_sec for node in tree.nodes if node.took_sec}
    if not events:
        return {"total_sec": 0.0, "worlds": {}, "forks": forks}
    worlds: dict[str, dict[str, float]] = {}
    running: dict[str, PhaseEntered] = {}
    end = events[-1].ts
    for event in events:
        if not isinstance(event, PhaseEntered | WorldClosed):
            continue
        previous = running.pop(event.node, None)
        if previous is not None:
            _add(worlds, previous, event.ts)
        if isinstance(event, PhaseEntered):
            running[event.node] = event
    for last in running.values():
        _add(worlds, last, end)
    return {"total_sec": end - events[0].ts, "worlds": worlds, "forks": forks}


def _add(worlds: dict[str, dict[str, float]], phase: PhaseEntered, until: float) -> None:
    times = worlds.setdefault(phase.node, {})
    times[phase.phase] = times.get(phase.phase, 0.0) + until - phase.ts


def write_inputs(directory: Path, task: Task, ran: RanWith, run: Mapping[str, object]) -> None:
    """Write the inputs of a rollout before it runs, into a directory without a rollout.

    With these files a later run can resume from the checkpoints, even if this process is killed.
    `run` is the configuration to run the rollout again, without secrets.

    Raises:
        StoreError: A file cannot be written, or `directory` already has a rollout.
    """
    config: Mapping[str, Any] = {
        "task_path": str(task.path),
        "task_id": task.id,
        "task_digest": task.digest,
        "task_format": task.format,
        "ran": {"agent": ran.agent, "model": ran.model, "sandbox": ran.sandbox},
        "run": run,
    }
    if task.override:
        config = {**config, "task_override": task.override}
    path = f"{directory}/config.json"
    if os.path.exists(path) or os.path.exists(f"{directory}/events.jsonl"):  # noqa: PTH110
        raise StoreError(f"{str(directory)!r} already has a rollout", hint="name a new directory")
    try:
        _write_json(path, seal_config(config), mode=0o600)
        _write_json(f"{directory}/prompts.json", [task.instruction, *task.config.user.nudges])
    except OSError as error:
        raise StoreError(f"cannot write rollout {directory.name!r}: {error}") from error


def write_rollout(directory: Path, tree: RolloutTree, events: Sequence[Event]) -> None:
    """Write the rewards, the trajectories and the times of a rollout that has ended.

    A linear rollout has `trajectory/acp_trajectory.jsonl`. A tree has one
    `acp_trajectory.<leaf>.jsonl` per leaf. `events` is the log from which `tree` was folded.

    Raises:
        StoreError: A file cannot be written.
    """
    try:
        _write_lines(f"{directory}/rewards.jsonl", _reward_lines(tree))
        _write_trajectories(f"{directory}/trajectory", tree)
        _write_json(f"{directory}/timing.json", phase_times(events, tree))
    except OSError as error:
        raise StoreError(f"cannot write rollout {directory.name!r}: {error}") from error


def write_result(directory: Path, record: RolloutRecord) -> None:
    """Write `result.json`, the last file of a rollout. All other files are then complete.

    Raises:
        StoreError: The file cannot be written.
    """
    _write_json(f"{directory}/result.json", record.model_dump(mode="json"))


def _write_trajectories(directory: str, tree: RolloutTree) -> None:
    leaves = tree.leaves
    for leaf in leaves:
        name = "acp_trajectory" if len(leaves) == 1 else f"acp_trajectory.{leaf.id}"
        _write_lines(f"{directory}/{name}.jsonl", acp_events(leaf.steps))


def _reward_lines(tree: RolloutTree) -> Iterable[Mapping[str, Any]]:
    for node in tree.nodes:
        if node.results:
            yield from rewards_jsonl(node.id, node.results, steps=node.steps)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the file at `path` atomically. A reader sees the old text or the new text.

    Raises:
        StoreError: The file cannot be written. The old file stays.
    """
    _replace(str(path), text.encode(), mode)


# Paths are texts here: they cost less than a `Path`, and each rollout writes several files.


def _replace(path: str, data: bytes, mode: int = 0o666) -> None:
    directory, name = os.path.split(path)
    scratch = os.path.join(directory, f".{name}.tmp")  # noqa: PTH118
    try:
        try:
            descriptor = _create(scratch, mode)
        except (FileNotFoundError, FileExistsError):
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
            Path(scratch).unlink(missing_ok=True)
            descriptor = _create(scratch, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(scratch, path)  # noqa: PTH105
    except OSError as error:
        with suppress(OSError):
            Path(scratch).unlink(missing_ok=True)
        raise StoreError(f"cannot write {path!r}: {error.strerror}") from error


def _create(path: str, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _write_json(path: str, data: object, *, mode: int = 0o666) -> None:
    _replace(path, pydantic_core.to_json(data, indent=2) + b"\n", mode)


def _write_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    try:
        file = open(path, "wb")  # noqa: PTH123, SIM115
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        file = open(path, "wb")  # noqa: PTH123, SIM115
    with file:
        for row in rows:
            file.write(_LINES.encode(row).encode() + b"\n")


def rewards_jsonl(
    node_id: str,
    results: Mapping[str, VerifyResult],
    *,
    steps: Sequence[Step] = (),
    ts: float | None = None,
) -> list[dict[str, Any]]:
    """Return the records of one node: each verdict, then its events.

    Every record has the keys `ts` (seconds since the epoch), `type` (`terminal`
    or `process`), `source`, `value` (`None` when unscored), `tag`, `step_index`
    (an index into `steps`, or `None`), `space`, `granularity` and `meta` (with at
    least `node`).
    """
    now = time.time() if ts is None else ts
    index = {step.id: position for position, step in enumerate(steps)}
    lines: list[dict[str, Any]] = []
    for name, result in results.items():
        lines.append(_verdict(now, node_id, name, result))
        lines.extend(_event(now, node_id, name, event, index) for event in result.events)
    return lines


def _type(granularity: Granularity) -> str:
    return "terminal" if granularity == "terminal" else "process"


def _verdict(ts: float, node_id: str, name: str, result: VerifyResult) -> dict[str, Any]:
    return {
        "ts": ts,
        "type": _type(result.granularity),
        "source": name,
        "value": result.reward,
        "tag": "verdict",
        "step_index": None,
        "space": result.space,
        "granularity": result.granularity,
        "meta": {
            **result.meta,
            "node": node_id,
            "grading": result.grading,
            "items": dict(result.items),
            "error": result.error,
        },
    }


def _event(
    ts: float, node_id: str, name: str, event: RewardEvent, index: Mapping[str, int]
) -> dict[str, Any]:
    step = None if event.step_id is None else index.get(event.step_id)
    return {
        "ts": ts,
        "type": _type(event.granularity),
        "source": event.source,
        "value": event.value,
        "tag": event.tag,
        "step_index": step,
        "space": event.space,
        "granularity": event.granularity,
        "meta": {**event.meta, "node": node_id, "reward": name, "step_id": event.step_id},
    }
