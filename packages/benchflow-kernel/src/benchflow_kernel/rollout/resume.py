"""Restore the position of a saved checkpoint, from which a branch run continues."""

from collections.abc import Sequence

from benchflow_contracts import (
    Role,
    SandboxImage,
    SessionSnapshot,
    SessionState,
    Task,
    UsageError,
)

from benchflow_kernel.branch import Checkpoint, Exchange
from benchflow_kernel.resolve import LoweredTurn, Plan
from benchflow_kernel.world import LiveWorld

from .branch_start import Position
from .checkpoint_manifest import CheckpointManifest, SavedSession


def resumed_turns(
    task: Task, turns: Sequence[LoweredTurn], *, manifest: CheckpointManifest, prompt: str | None
) -> tuple[LoweredTurn, ...]:
    """Return the turns of the earlier rollout: the finished ones and the next ones.

    The roles come from `turns`, by name, so a resumed rollout may have other agents. `prompt`
    replaces the remaining turns of the earlier rollout.

    Raises:
        UsageError: No turn is left to run, or the checkpoint belongs to another task.
    """
    if manifest.task_id != task.id:
        raise UsageError(f"the checkpoint is of task {manifest.task_id!r}, not {task.id!r}")
    if prompt is not None and task.steps:
        raise UsageError(
            "a task of several steps resumes with its own prompts",
            hint="leave the prompt out, or change the steps of the task",
        )
    first = turns[0]
    schedule = [
        LoweredTurn(
            scene=turn.scene,
            role=_roles(turns, turn.task_step).get(turn.role, first.role),
            prompt=turn.prompt,
            task_step=turn.task_step,
        )
        for turn in manifest.schedule
    ]
    open_turn = manifest.in_turn
    if prompt is not None:
        role = schedule[min(manifest.turn, len(schedule) - 1)].role
        del schedule[manifest.turn + open_turn :]
        schedule.append(LoweredTurn(scene=first.scene, role=role, prompt=prompt))
    if manifest.turn >= len(schedule) and not is_only_graded(manifest, prompt):
        raise UsageError(
            f"node {manifest.node!r} is the end of its schedule: nothing is left to run",
            hint="give a prompt",
        )
    return tuple(schedule)


def is_only_graded(manifest: CheckpointManifest, prompt: str | None) -> bool:
    """Return whether the agents had ended, and `prompt` does not start another turn."""
    return manifest.ended and prompt is None


def resumed_position(
    plan: Plan, manifest: CheckpointManifest, image: SandboxImage, root: str, *, only_graded: bool
) -> Position:
    """Return the saved position as the root of a new rollout.

    Sessions of the same agent continue with their history. A role with another agent starts
    a new session in the restored world. With `only_graded` no turn runs.

    Raises:
        UsageError: A live session would continue with another model.
    """
    turn = manifest.schedule[min(manifest.turn, len(manifest.schedule) - 1)]
    roles = _roles(plan.turns, turn.task_step)
    idle_sessions: dict[str, tuple[Role, SessionSnapshot]] = {}
    live_sessions: dict[str, tuple[Role, SessionState]] = {}
    for session in manifest.sessions:
        role = roles.get(session.role)
        if role is None or role.agent != session.agent:
            continue
        if session.snapshot is not None:
            idle_sessions[role.name] = (role, _for_role(session, session.snapshot, role))
        elif session.carry is not None:
            _check_model(session, role)
            live_sessions[role.name] = (role, session.carry)
    _check_replay(manifest, plan)
    live = _live(manifest, live_sessions) if manifest.live else None
    checkpoint = Checkpoint(
        turn=manifest.checkpoint_turn,
        image=image,
        state=manifest.state,
        outside=manifest.outside,
        sessions=idle_sessions,
        live=live,
        from_disk=True,
    )
    return Position(
        node=root,
        turn=manifest.turn,
        schedule=plan.turns,
        checkpoint=checkpoint,
        script=tuple(Exchange(turn=e.turn, ask=e.ask, answer=e.answer) for e in manifest.script),
        calls=manifest.calls,
        calls_before=manifest.calls_before,
        call=manifest.call,
        ended=only_graded,
        ungraded_step=manifest.ungraded_step if only_graded else None,
    )


def _roles(turns: Sequence[LoweredTurn], task_step: int) -> dict[str, Role]:
    """Return the roles of one step of the task, by name."""
    return {turn.role.name: turn.role for turn in turns if turn.task_step == task_step}


def _live(
    manifest: CheckpointManifest, live_sessions: dict[str, tuple[Role, SessionState]]
) -> LiveWorld:
    used = {carry.process_id for _, carry in live_sessions.values()}
    process_ids = (
        session.carry.process_id
        for session in manifest.sessions
        if session.carry is not None and session.carry.process_id
    )
    return LiveWorld(
        services=manifest.services or {},
        sessions=live_sessions,
        unused_agents=tuple(process for process in process_ids if process not in used),
    )


def _for_role(session: SavedSession, snapshot: SessionSnapshot, role: Role) -> SessionSnapshot:
    """Return the snapshot without its model if the role has another one."""
    if role.model == session.model or "model" not in snapshot.config:
        return snapshot
    config = {name: value for name, value in snapshot.config.items() if name != "model"}
    return snapshot.model_copy(update={"config": config})


def _check_model(session: SavedSession, role: Role) -> None:
    if role.model != session.model:
        raise UsageError(
            f"the live process of role {role.name!r} acts with model {session.model!r}",
            hint="keep its model, give the role another agent, or resume from a turn boundary",
        )


def _check_replay(manifest: CheckpointManifest, plan: Plan) -> None:
    """Refuse another agent for a replayed turn: an agent cannot join a running turn."""
    within = range(manifest.checkpoint_turn, manifest.turn + manifest.in_turn)
    for index in within:
        saved, role = manifest.schedule[index], plan.turns[index].role
        if (saved.agent, saved.model) != (role.agent, role.model):
            raise UsageError(
                f"node {manifest.node!r} is within turn {index} of agent {saved.agent!r}, and role"
                f" {role.name!r} now has agent {role.agent!r}",
                hint="resume with that agent and model, or from a node at a turn's start",
            )
