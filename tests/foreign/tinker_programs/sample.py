"""Sample by `TinkerEngine` with tinker's own types, and print what its client got."""

import asyncio
import json
from typing import Any

import tinker
from benchflow_gateway.errors import RefusedError
from benchflow_gateway.rendering import Sampling
from benchflow_gateway.rendering.tinker_engine import TinkerEngine
from tinker.types import ModelInput, SampledSequence, SampleResponse, SamplingParams

asked: list[dict[str, Any]] = []
sequences = [
    SampledSequence("stop", "a", _tokens_list=[5, 6], _logprobs_list=[-0.5, -0.25]),
    SampledSequence("length", "b", _tokens_list=[5]),
]
clients: list[str] = []


class SamplingClient:
    def __init__(self, **model: str) -> None:
        self.model = model

    async def sample(
        self, *, prompt: ModelInput, num_samples: int, sampling_params: SamplingParams
    ) -> SampleResponse:
        assert num_samples == 1
        if not sequences:
            raise tinker.APIConnectionError(request=None)  # type: ignore[arg-type]
        params = sampling_params.model_dump(exclude_unset=True, exclude_none=True)
        asked.append({**self.model, "prompt": prompt.to_ints(), "params": params})
        return SampleResponse(sequences=[sequences.pop(0)])


class ServiceClient:
    def __init__(self, *, base_url: str, api_key: str) -> None:
        assert (base_url, api_key) == ("http://127.0.0.1:9", "tml-key")

    async def create_sampling_client(self, **model: str) -> SamplingClient:
        clients.append("made")
        return SamplingClient(**model)


async def main() -> None:
    tinker.ServiceClient = ServiceClient  # type: ignore[misc,assignment]
    engine = TinkerEngine("http://127.0.0.1:9", "tml-key")
    tuned = "tinker://run/sampler_weights/7"
    values = {"temperature": 0.5, "seed": 5, "min_p": 0}
    answers = [
        await engine.sample([1, 2, 3], Sampling(values, 4), [9], tuned),
        await engine.sample([1], Sampling({}), [9], "Qwen/Qwen3-8B"),
    ]
    refused: list[int] = []
    for sampling in (Sampling({"min_p": 0.1}), Sampling({})):
        try:
            await engine.sample([1], sampling, [9], tuned)
        except RefusedError as error:
            refused.append(error.status)
    shown = [[a.token_ids, a.logprobs, a.finish_reason, a.version] for a in answers]
    result = {"asked": asked, "answers": shown, "refused": refused, "clients": len(clients)}
    print(json.dumps(result))


asyncio.run(main())
