"""The conversation of a call in one form, and the limit on its messages."""

from typing import Any

import pytest
from benchflow_contracts import CallBudget, Endpoint, EvidenceMissingError, SupportsMessages, Usage
from benchflow_gateway import CallBudgetError
from benchflow_gateway.conversation import messages_of
from benchflow_gateway.meter import Meter
from benchflow_gateway.prices import Price
from gateway_peers import agent_of, ask
from scripted_llm import ModelReply, ScriptedLlm

APIS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_route_returns_the_conversation_of_each_wire(run, api: Any, stream: bool) -> None:
    with ScriptedLlm(lambda _: ModelReply(text="It is done.")) as llm:

        async def body(gateway: Any) -> None:
            route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
            assert isinstance(route, SupportsMessages)
            assert list(route.messages()) == []
            async with agent_of(route) as agent:
                assert (await agent.post(api, stream=stream, text="Do it."))[0] == 200
            asked, answer = route.messages()
            assert (asked["role"], answer["role"]) == ("user", "assistant")
            assert ("Do it." in str(asked["content"]), "It is done." in str(answer["content"])) == (
                True,
                True,
            )

        run(body)


def test_the_messages_of_a_tool_call_are_four_in_each_wire() -> None:
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
    claude = {
        "system": "s",
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
    }
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "x"}
    hosted = [{"type": "a tool that no other wire has"}]
    codex = {"instructions": "s", "input": [{"role": "user", "content": "u"}, call, output]}
    for api, request in [("anthropic-messages", claude), ("openai-responses", codex)]:
        roles = [m["role"] for m in messages_of(api, {**request, "tools": hosted})]  # type: ignore[arg-type]
        assert roles == ["system", "user", "assistant", "tool"]


def test_a_call_with_too_many_messages_ends_the_work_of_the_agent(run) -> None:
    with ScriptedLlm(lambda _: ModelReply(text="No.")) as llm:

        async def body(gateway: Any) -> None:
            budget, upstream = CallBudget(messages=2), Endpoint(url=llm.url)
            route = await gateway.open("r", "n", upstream=upstream, budget=budget)
            more = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
            async with agent_of(route) as agent:
                assert (await agent.post("openai-chat"))[0] == 200
                url = f"{agent.base}/chat/completions"
                long = {**ask("openai-chat"), "messages": more}
                async with agent.session.post(url, json=long) as answer:
                    assert answer.status == 429
            assert isinstance(route.error, CallBudgetError)
            assert "2 messages, and the limit is 2" in str(route.error)
            stored = await gateway.open("r", "m", upstream=upstream, budget=budget)
            async with agent_of(stored) as agent:
                url = f"{agent.base}/responses"
                kept = {**ask("openai-responses"), "previous_response_id": "r1"}
                async with agent.session.post(url, json=kept) as answer:
                    assert answer.status == 429
            assert "cannot be counted" in str(stored.error)
            assert len(llm.requests) == 1

        run(body)


def test_a_conversation_that_the_provider_keeps_is_missing_and_not_empty(run) -> None:
    with ScriptedLlm(lambda _: ModelReply(text="No.")) as llm:

        async def body(gateway: Any) -> None:
            route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
            async with agent_of(route) as agent:
                kept = {**ask("openai-responses"), "previous_response_id": "r1"}
                async with agent.session.post(f"{agent.base}/responses", json=kept) as answer:
                    assert answer.status == 200
            with pytest.raises(EvidenceMissingError, match="stored on OpenAI's servers"):
                route.messages()

        run(body)


def test_a_limit_of_dollars_includes_the_tokens_before_the_route() -> None:
    budget = CallBudget(cost_usd=3, earlier=Usage(input_tokens=1_000_000, output_tokens=1_000_000))
    Meter(budget, {"": Price(input=1, output=1)}).begin("m")
    with pytest.raises(CallBudgetError, match=r"3\.0000 of 3\.0000 USD"):
        Meter(budget, {"": Price(input=1, output=2)}).begin("m")
