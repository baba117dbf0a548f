"""Tasks of BenchFlow as resource sessions of OpenEnv's harness, and for its trainers.

With `TaskSessionFactory`, OpenEnv's harness makes the tool calls. With `AgentSessionFactory`, an
agent of BenchFlow acts by itself, and its recorded model calls are the training trace.
"""

# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false

import asyncio
import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_contracts import ModelCall, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.rollout import RunResult, run
from benchflow_engine.task_formats import runnable_task
from benchflow_store import read_model_calls
from benchflow_tool_sessions import BlockingSession, BlockingSessions, Outcome, SessionLimits
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    Message,
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    VerifyResult,
)
from openenv.core.harness.training import TrainingTrace, TrainingTurn

from .server import name_of, result_of, tool_of


class TaskSession(ResourceSession):
    """A tool session on one task. `verify` submits, unless a tool call has ended the session."""

    def __init__(self, session: BlockingSession) -> None:
        self._session = session

    def initial_messages(self) -> list[Message]:
        """Return the prompt of the task."""
        return [{"role": "user", "content": self._session.prompt}]

    def list_tools(self) -> list[Tool]:
        """Return the tools of the task."""
        return [tool_of(spec) for spec in self._session.tools()]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. A tool that fails is a result with an error."""
        result = self._session.call(name_of(name), arguments)
        metadata: dict[str, Any] = {"truncated": result.truncated}
        if result.finished:
            outcome = self._session.outcome()
            metadata |= {"reward": outcome.reward, "unscored": outcome.unscored}
        return ToolResult(
            data=result_of(result) if result.content else result.text,
            done=result.finished,
            metadata=metadata,
            error=result.text if result.is_error else None,
        )

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:  # noqa: ANN401 - OpenEnv's signature
        """Submit with the last message of the transcript, and return the verdict."""
        del final_state
        outcome: Outcome | None = None
        while not self._session.session.is_ended:
            outcome = self._session.submit(_last_text(transcript))
        return _verified(outcome or self._session.outcome())

    def close(self) -> None:
        """End the session and delete its sandbox. Idempotent."""
        self._session.close()


class TaskSessionFactory(ResourceSessionFactory[TaskSession]):
    """Opens a session for each rollout. `task` is a directory or a `Task`."""

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        jobs_dir: str | Path | None = None,
        limits: SessionLimits | None = None,
        most: int = 64,
    ) -> None:
        self._config = config or RunConfig()
        self._sessions = BlockingSessions(
            self._config,
            jobs_dir=None if jobs_dir is None else Path(jobs_dir),
            limits=limits,
            most=most,
        )

    def create(
        self, task: str | Path | Task, seed: int | None = None, episode_id: str | None = None
    ) -> TaskSession:
        """Open a session. The seed has no effect: a task begins in one state.

        Raises:
            BenchFlowError: The task is malformed, or the session did not start.
        """
        del seed
        return TaskSession(self._sessions.open(_loaded(task, self._config), slot=episode_id))

    def close(self) -> None:
        """End all sessions. Idempotent."""
        self._sessions.close()


class IncompleteTraceError(UsageError, ValueError):
    """A model call has no exact tokens. A trainer must stop: no later rollout would have them."""


class AgentSession(ResourceSession):
    """A rollout of one agent of BenchFlow, which owns its loop: `TrainableSession`."""

    def __init__(self, task: Task, config: RunConfig, jobs_dir: Path) -> None:
        self._task = task
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rollout: asyncio.Task[RunResult] | None = None
        self._thread = threading.Thread(
            target=self._run, args=(config, jobs_dir), name="agent session", daemon=True
        )
        self._started = threading.Event()
        self._thread.start()
        self._started.wait()

    def initial_messages(self) -> list[Message]:
        """Return the prompt of the task, which the agent already has."""
        return [{"role": "user", "content": self._task.instruction}]

    def list_tools(self) -> list[Tool]:
        """Return no tools: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Refuse: the agent acts by itself."""
        del arguments
        return ToolResult(error=f"the agent owns its loop; {name!r} cannot be called")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the rollout; return 0 if it has a verdict, else 1.

        Raises:
            TimeoutError: It did not end in time. It runs on.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the rollout did not end within {timeout_s} s")
        return 0 if self._result is not None and self._result.reward is not None else 1

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the agent's model calls with their token ids, as the engine gave them.

        Prompts have the mask 0 and completions the mask 1.

        Raises:
            IncompleteTraceError: A call has no exact tokens.
            UsageError: The rollout has forks or no model calls.
        """
        result = self._finished()
        assert result.directory is not None, "an agent session records its rollout"
        leaves = result.tree.leaves
        if len(leaves) != 1:
            raise UsageError(f"a rollout of {len(leaves)} leaves is not one training trace")
        calls = read_model_calls(result.directory)
        used = [calls[ident] for step in leaves[0].steps for ident in step.model_calls]
        turns = [_turn(call) for call in used if call.purpose == "main"]
        if not turns:
            raise UsageError("the rollout has no model calls", hint="use an agent with a model")
        return TrainingTrace(turns=turns)

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:  # noqa: ANN401 - OpenEnv's signature
        """Wait for the end of the rollout, and return its verdict."""
        del transcript, final_state
        self._thread.join()
        result = self._finished()
        record = result.record
        unscored = None if record.reward is not None else record.status
        return _verified(Outcome(record.reward, record.rewards or {}, unscored, None, result))

    def close(self) -> None:
        """Cancel the rollout, if it still runs, and wait until it is torn down. Idempotent."""
        if self._thread.is_alive() and self._loop is not None and self._rollout is not None:
            self._loop.call_soon_threadsafe(self._rollout.cancel)
        self._thread.join()

    def _finished(self) -> RunResult:
        if self._thread.is_alive():
            raise UsageError("the rollout runs", hint="call wait_for_completion first")
        if self._result is None:
            raise UsageError(f"the rollout has no result: {self._error}")
        return self._result

    def _run(self, config: RunConfig, jobs_dir: Path) -> None:
        async def work() -> None:
            self._loop, self._rollout = asyncio.get_running_loop(), asyncio.current_task()
            self._started.set()
            self._result = await run(self._task, config=config, jobs_dir=jobs_dir)

        try:
            asyncio.run(work())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - see `_finished`
            self._error = error
        finally:
            self._started.set()


class AgentSessionFactory(ResourceSessionFactory[AgentSession]):
    """Starts a rollout of an agent for each session: a seam of trainers such as TRL.

    The endpoint must give token ids: `[model] upstream = "vllm"`, or an engine behind
    `bench gateway render`. TRL's `HarnessRolloutWorker` takes
    `functools.partial(AgentSessionFactory, config, jobs_dir=...)`.

    Args:
        config: What each rollout is run with.
        jobs_dir: The directory for the records.
        sampling: The parameters of the policy that is trained. They replace those of `config`.

    Raises:
        UsageError: The configuration has no model endpoint, or a fork policy.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        jobs_dir: str | Path,
        sampling: Mapping[str, float] | None = None,
    ) -> None:
        if config.model.base_url is None or not config.model.gateway:
            raise UsageError("an agent session needs a model endpoint behind the gateway")
        if config.branch is not None:
            raise UsageError("an agent session has one leaf", hint="leave out the fork policy")
        merged = {**config.model.sampling, **(sampling or {})}
        model = config.model.model_copy(update={"sampling": merged})
        self._config = config.model_copy(update={"model": model})
        self._jobs_dir = Path(jobs_dir)

    def create(
        self, task: str | Path | Task, seed: int | None = None, episode_id: str | None = None
    ) -> AgentSession:
        """Start a rollout.

        Args:
            task: A directory or a `Task`.
            seed: The seed of the model's sampling, together with `episode_id`: the rollouts of a
                group have one seed, and must not be copies of each other.
            episode_id: The caller's id of this rollout.
        """
        config = self._config
        if seed is not None:
            mixed = sampling_seed(seed, episode_id)
            model = config.model.model_copy(update={"seed": mixed})
            config = config.model_copy(update={"model": model})
        return AgentSession(_loaded(task, config), config, self._jobs_dir)


def sampling_seed(seed: int, episode_id: str | None) -> int:
    """Return a seed below 2**31 for one episode."""
    if episode_id is None:
        return seed % 2**31
    digest = hashlib.sha256(f"{seed}/{episode_id}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def _loaded(task: str | Path | Task, config: RunConfig) -> Task:
    return task if isinstance(task, Task) else runnable_task(task, config.adapter_options())


def _verified(outcome: Outcome) -> VerifyResult:
    record = outcome.result.record if outcome.result is not None else None
    return VerifyResult(
        env_reward=outcome.reward,
        done=True,
        metrics=dict(outcome.items),
        artifacts={
            "rollout": record.rollout_id if record is not None else None,
            "unscored": outcome.unscored,
            "ended_early": outcome.ended_early,
        },
    )


def _turn(call: ModelCall) -> TrainingTurn:
    prompt, completion, logprobs = call.prompt_token_ids, call.completion_token_ids, call.logprobs
    if prompt is None or completion is None or logprobs is None:
        raise IncompleteTraceError(
            f"model call {call.id!r} has no exact tokens",
            hint="use an endpoint that gives token ids and log-probabilities",
        )
    return TrainingTurn(
        node_id=call.id,
        prompt_token_ids=list(prompt),
        completion_token_ids=list(completion),
        per_token_logps=list(logprobs),
        loss_mask=[0] * len(prompt) + [1] * len(completion),
        request=dict(call.upstream_request or call.request),
        response=dict(call.upstream_response or call.response or {}),
        metadata={"policy_version": call.policy_version, "model": call.model},
    )


def _last_text(transcript: Sequence[Message]) -> str:
    for message in reversed(transcript):
        text = message.get("content")
        if message.get("role") == "assistant" and isinstance(text, str):
            return text
    return ""
