"""Sampling parameters that replace those of the agent, in each wire."""

from typing import Any

import pytest
from benchflow_contracts import Endpoint
from benchflow_gateway import HttpGateway, SamplingOverride
from benchflow_gateway.sampling import call_seed
from gateway_peers import agent_of, ask

VALUES = {"temperature": 0.25, "top_p": 0.5, "max_tokens": 64}
EXPECTED: dict[str, dict[str, Any]] = {
    "openai-chat": {**VALUES, "seed": call_seed(7, "n.000001")},
    "openai-responses": {"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 64},
    "anthropic-messages": VALUES,
    "gemini": {
        "temperature": 0.25,
        "topP": 0.5,
        "maxOutputTokens": 64,
        "seed": call_seed(7, "n.000001"),
    },
}
OWN = {"temperature": 1, "max_completion_tokens": 9, "top_p": 1}


@pytest.fixture
def opened(run: Any, llm: Any) -> Any:
    def go(kind: Any, sampling: SamplingOverride, check: Any) -> None:
        async def body(gateway: HttpGateway) -> None:
            gateway.sampling = sampling
            line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
            async with agent_of(line) as agent:
                await check(line, agent)

        run(body, kind=kind)

    return go


@pytest.mark.parametrize("api", sorted(EXPECTED))
def test_each_call_has_the_operators_sampling_in_its_own_wire(
    opened: Any, llm: Any, api: str
) -> None:
    own = OWN if api == "openai-chat" else {}

    async def check(line: Any, agent: Any) -> None:
        assert (await agent.post(api, **own))[0] == 200
        [call] = line.calls()
        assert call.request == ask(api, **own) or api == "gemini"
        sent = dict(call.upstream_request)
        found = sent["generationConfig"] if api == "gemini" else sent
        assert {key: found.get(key) for key in EXPECTED[api]} == EXPECTED[api]
        assert "max_completion_tokens" not in found
        assert (call.upstream_api, call.upstream_response) == (api, call.response)

    opened("same", SamplingOverride(VALUES, 7), check)
    [request] = llm.requests
    assert request is not None


@pytest.mark.parametrize("api", sorted(EXPECTED))
def test_a_translated_call_has_the_sampling_of_the_upstreams_wire(opened: Any, api: str) -> None:
    async def check(line: Any, agent: Any) -> None:
        for _ in range(2):
            assert (await agent.post(api))[0] == 200
        first, second = line.calls()
        for call in (first, second):
            assert {k: call.upstream_request.get(k) for k in VALUES} == VALUES
        seeds = [call.upstream_request["seed"] for call in (first, second)]
        assert seeds == [call_seed(7, "n.000001"), call_seed(7, "n.000002")]

    opened("vllm", SamplingOverride(VALUES, 7), check)


def test_a_parameter_that_the_wire_lacks_refuses_the_call(opened: Any, llm: Any) -> None:
    async def check(line: Any, agent: Any) -> None:
        status, text = await agent.post("anthropic-messages")
        assert (status, "min_p" in text) == (400, True)
        [call] = line.calls()
        assert call.error is not None

    opened("same", SamplingOverride({"min_p": 0.1}), check)
    assert llm.requests == []


def test_without_an_override_the_bytes_are_the_agents(opened: Any) -> None:
    async def check(line: Any, agent: Any) -> None:
        assert (await agent.post("openai-chat"))[0] == 200
        [call] = line.calls()
        assert (call.upstream_api, call.upstream_request) == (None, {})

    opened("same", SamplingOverride(), check)
