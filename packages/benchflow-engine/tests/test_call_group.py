"""The part of a record that comes before a model call, and a user that repeats it."""

import asyncio
from typing import Any

import pytest
from benchflow_contracts import Answer, ModelCall, Step, UsageError
from benchflow_engine.posthoc.call_group import PrefixUser, calls_before
from benchflow_testing.fakes import FakeUserModel, ask_with_options
from hypothesis import given
from hypothesis import strategies as st

ASK = ask_with_options("Which day?", "monday", "friday")


def call(ident: int, **more: Any) -> ModelCall:
    fields: dict[str, Any] = {"api": "openai-chat", "request": {}, "status": 200}
    times = {"started_at": ident, "finished_at": ident}
    return ModelCall.model_validate({"id": f"n.{ident}", "node": "n", **fields, **times, **more})


KINDS = st.sampled_from([{}, {"purpose": "aux"}, {"status": 500}, {"error": "cut"}])


@given(st.lists(KINDS, max_size=12), st.integers(1, 12))
def test_the_calls_before_the_kth_answered_one_are_those_of_the_record(
    kinds: list[dict[str, Any]], number: int
) -> None:
    calls = [call(at, **kind) for at, kind in enumerate(kinds)]
    work = [each for each, kind in zip(calls, kinds, strict=True) if not kind]
    if number > len(work):
        with pytest.raises(UsageError, match=f"no model call {number}"):
            calls_before(calls, number)
        return
    before = calls_before(calls, number)
    assert list(before) == calls[: len(before)]
    assert calls[len(before)] == work[number - 1]


def step(**more: Any) -> Step:
    return Step(id="s", started_at=0, finished_at=1, **more)


def test_a_user_repeats_the_record_and_then_speaks_for_itself() -> None:
    recorded = Answer.choose(ASK, "monday")
    steps = [step(prompt="do it", ask=ASK), step(answer=recorded), step(prompt="more")]
    other = FakeUserModel(nudges=["and then"])
    user = PrefixUser(steps, other)

    async def main() -> None:
        assert await user.answer(ASK, ()) == recorded
        assert await user.answer(ASK, ()) == await other.answer(ASK, ())
        assert await user.nudge(steps[:1]) == "more"
        assert await user.nudge(steps) == "and then"
        await user.aclose()
        assert other.closed

    asyncio.run(main())
