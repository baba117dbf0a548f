# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN202, ARG002 - the signatures of verifiers
# pyright: basic, reportMissingImports=false
"""Environments of verifiers up to 0.3.1: `load_environment(id)`."""

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from verifiers.legacy.clients import Client
from verifiers.legacy.errors import OverlongPromptError
from verifiers.legacy.types import Response, ResponseMessage, State, ToolCall
from verifiers.legacy.utils.env_utils import load_environment
from verifiers.legacy.utils.message_utils import normalize_messages

from .exchange import FAULTS, OVER, STOP, Exchange, UnsupportedError, Verdict, text_of

_KEPT = {"input", "task", "prompt", "tool_defs", "trajectory_id", "reward", "metrics", "error"}
"""The part of the first state of an episode that is still true at its end."""
_FAULT = re.compile(r"Error calling (?:group )?reward function ([^:]+):")


class _Faults(logging.Handler):
    """Notes reward functions that raised: verifiers scores them with 0 and goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if _FAULT.match(text) and (faults := FAULTS.get(None)) is not None:
            faults.append(text)


class _AgentClient(Client):
    """A client of a model endpoint whose model is the agent of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(None)
        self._exchange = exchange
        self._calls = 0

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        messages = [each.model_dump(mode="json", exclude_none=True) for each in prompt]
        found = [each.model_dump(mode="json", exclude_none=True) for each in tools or ()]
        action = await self._exchange.ask(messages, found)
        if action == STOP:
            raise OverlongPromptError("the agent has ended")
        calls = None
        if "tool" in action:
            self._calls += 1
            arguments = json.dumps(action["arguments"])
            calls = [ToolCall(id=f"call_{self._calls}", name=action["tool"], arguments=arguments)]
        message = ResponseMessage(
            content=action.get("content", ""),
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id="agent", created=int(time.time()), model=model, message=message)

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        raise NotImplementedError

    async def to_native_prompt(self, messages):
        raise NotImplementedError

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        raise NotImplementedError

    async def raise_from_native_response(self, response):
        raise NotImplementedError

    async def from_native_response(self, response):
        raise NotImplementedError

    async def close(self):
        """Close nothing."""


class _EndedState(State):
    """The state of an episode that ended elsewhere. Only a live one has what it does not have.

    Each method that reads a key refuses such a key: an answer would be a wrong reward.
    """

    _OPTIONAL = frozenset({*State.INPUT_FIELDS, "judge_response"})

    def __getitem__(self, key) -> Any:  # noqa: ANN401 - as in State
        self._check(key)
        return super().__getitem__(key)

    def __contains__(self, key) -> bool:
        self._check(key)
        return super().__contains__(key)

    def setdefault(self, key, default=None) -> Any:  # noqa: ANN401 - as in dict
        """Return the value of a key of the ended episode, as `dict.setdefault`."""
        self._check(key)
        return super().setdefault(key, default)

    def pop(self, key, *default: Any) -> Any:  # noqa: ANN401 - as in dict
        """Remove a key of the ended episode, and return its value, as `dict.pop`."""
        self._check(key)
        return super().pop(key, *default)

    def copy(self) -> "_EndedState":
        """Return a copy that refuses the same keys."""
        return _EndedState(self)

    def _check(self, key) -> None:
        if key not in self.keys() | self._OPTIONAL:
            raise LookupError(f"an episode that has ended does not have state[{key!r}]")


class LegacyWorlds:
    """One environment, and its episodes."""

    def __init__(self, ident: str, arguments: dict[str, Any]) -> None:
        logging.getLogger("verifiers").addHandler(_Faults())
        self._env = load_environment(ident, **arguments)
        self.scores_groups: bool = self._env.requires_group_rollouts
        """Whether rollouts have rewards only as a group: then one rollout is not scored."""
        if self.scores_groups:
            self._env.set_score_rollouts(False)

    @property
    def speaks(self) -> bool:
        """Whether the environment answers texts of the agent, in more than one turn."""
        turns = getattr(self._env, "max_turns", 1)
        return not self._env.tool_defs and turns != 1

    def splits(self) -> dict[str, int | None]:
        """Return the number of tasks of each split."""
        found = {}
        for name in ("train", "eval"):
            try:
                found[name] = len(self._dataset(name))
            except ValueError:
                continue
        return found

    def tasks(self, split: str | None, start: int, limit: int) -> list[dict[str, Any]]:
        """Return rows of the dataset, with the text of the prompt."""
        rows = self._dataset(split or "train")
        end = min(start + limit, len(rows))
        return [{"data": rows[at], "prompt": _text(rows[at]["prompt"])} for at in range(start, end)]

    def reward_range(self) -> tuple[float, float]:
        """Return the range of the reward if each function is between 0 and 1."""
        weights = [weight for each in _rubrics(self._env.rubric) for weight in each.weights] or [
            1.0
        ]
        low = sum(weight for weight in weights if weight < 0)
        return low, max(sum(weight for weight in weights if weight > 0), low + 1.0)

    async def run(self, data: dict[str, Any], exchange: Exchange, session: str) -> Verdict:
        """Run one rollout as verifiers does, with the agent of the exchange as its model."""
        output = await self._env.run_rollout(data, _AgentClient(exchange), session, {})
        error = output.get("error")
        if error is not None:
            return Verdict(error=str(error.get("error_chain_str") or error), tail=_tail(output))
        if self.scores_groups:
            return Verdict(tail=_tail(output))
        broken = self._forgive_metrics()
        numbers = output["metrics"].items()
        parts = {name: float(value) for name, value in numbers if name not in broken}
        return Verdict(reward=float(output["reward"]), parts=parts, tail=_tail(output))

    async def score(self, *_: object) -> Verdict:
        """Refuse: a rubric of this version scores the state of a live rollout."""
        raise UnsupportedError("a rubric scores the state of a live rollout", "rubric")

    async def score_group(
        self, data: dict[str, Any], candidates: Sequence[Sequence[dict[str, Any]]]
    ) -> list[Verdict]:
        """Score episodes of one task together, by the messages after the prompt."""
        if not self.scores_groups:
            raise UnsupportedError("the rubric does not score groups", "rubric")
        states = [await self._state(data, messages) for messages in candidates]
        FAULTS.set([])
        await self._env.rubric.score_group(states)
        broken = self._forgive_metrics()
        if faults := FAULTS.get():
            raise ValueError(faults[0])
        return [
            Verdict(
                reward=float(state["reward"]),
                parts={k: float(v) for k, v in state["metrics"].items() if k not in broken},
            )
            for state in states
        ]

    async def _state(self, data: dict[str, Any], messages: Sequence[dict[str, Any]]):
        """Return the state of an episode that has ended, with one turn for each answer."""
        client = _AgentClient(Exchange())
        first = await self._env.init_state(data, client, "agent")
        state = _EndedState({key: value for key, value in first.items() if key in _KEPT})
        said = normalize_messages(list(_spoken(messages) if self.speaks else messages))
        state["completion"], state["is_completed"] = said, True
        state["trajectory"] = [
            {
                **dict.fromkeys(("response", "tokens", "reward", "advantage")),
                "prompt": [*state["prompt"], *said[:at]],
                "completion": [message],
                "is_truncated": False,
                "trajectory_id": first["trajectory_id"],
                "extras": {},
            }
            for at, message in enumerate(said)
            if message.role == "assistant"
        ]
        return state

    def _forgive_metrics(self) -> set[str]:
        """Return the functions that failed and whose weight is 0: they do not change the reward."""
        faults = FAULTS.get([])
        counted = {
            getattr(func, "__name__", "")
            for rubric in _rubrics(self._env.rubric)
            for func, weight in zip(rubric.funcs, rubric.weights, strict=False)
            if weight != 0
        }
        names = {text: match[1] for text in faults if (match := _FAULT.match(text))}
        # A fault without the name of its function counts.
        faults[:] = [text for text in faults if names.get(text) in {*counted, None}]
        return {name for name in names.values() if name not in counted}

    def _dataset(self, split: str):
        if split == "train" and self._env.dataset is None and self._env.dataset_source is None:
            raise ValueError("the environment has no dataset to train on")
        return self._env.get_dataset() if split == "train" else self._env.get_eval_dataset()

    async def aclose(self) -> None:
        """Close nothing: the environment ends with the process."""


def _spoken(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a conversation whose answers were calls of `say`: the results are the user's messages.

    What the agent writes to nobody at its end is not a part of it.
    """
    calls: set[str] = set()
    for message in messages:
        for call in message.get("tool_calls") or ():
            calls.add(call["id"])
            text = json.loads(call["function"]["arguments"]).get("message", "")
            yield {"role": "assistant", "content": str(text)}
        if message["role"] == "tool" and message["tool_call_id"] in calls:
            if message["content"] != OVER:
                yield {"role": "user", "content": message["content"]}
        elif message["role"] == "assistant" and not calls:
            yield message


def _rubrics(rubric) -> list[Any]:
    """Return a rubric and those inside of it."""
    inner = getattr(rubric, "rubrics", ())
    own = [rubric] if getattr(rubric, "weights", None) else []
    return own + [each for part in inner for each in _rubrics(part)]


def _tail(output: dict[str, Any]) -> Sequence[dict[str, Any]]:
    tail: list[dict[str, Any]] = []
    for message in reversed(output.get("completion") or ()):
        if message.get("role") == "assistant":
            break
        tail.insert(0, message)
    return tail


def _text(prompt: str | list[dict[str, Any]]) -> str:
    return prompt if isinstance(prompt, str) else text_of(prompt)
