"""Judge rollouts by agentlightning: `python check_agent_lightning.py FILE`.

Adds the spans to the package's store, reads them back, and prints the triplets of its adapter.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agentlightning.adapter import TracerTraceToTriplet
from agentlightning.emitter import find_final_reward
from agentlightning.store import InMemoryLightningStore
from agentlightning.types import Span


async def stored(record: dict[str, Any]) -> dict[str, Any]:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout(input=record["input"], mode="train")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    for span in record["spans"]:
        assert await store.add_span(Span.model_validate({**span, **ids})) is not None
    spans = list(await store.query_spans(rollout.rollout_id))
    triplets = TracerTraceToTriplet().adapt(spans)
    return {
        "final_reward": find_final_reward(spans),
        "rewards": [each.reward for each in triplets],
        "calls": [
            {
                "prompt": each.prompt["token_ids"],
                "response": each.response["token_ids"],
                "logprobs": [token["logprob"] for token in each.response["logprobs"]],
            }
            for each in triplets
        ],
    }


lines = Path(sys.argv[1]).read_text().splitlines()
print(json.dumps([asyncio.run(stored(json.loads(line))) for line in lines]))
