"""One seed of a rollout reaches its model calls, is recorded, and stays with what resumes it."""

import asyncio
from pathlib import Path

import pytest
from benchflow_engine.config import RunConfig
from benchflow_engine.posthoc.run_inputs import RunInputs
from benchflow_engine.rollout import run
from benchflow_engine.scaffold import write_task
from benchflow_gateway.sampling import call_seed
from benchflow_store import StoredRollout
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm


@pytest.mark.parametrize("model_seed", [None, 9])
def test_the_seed_of_a_rollout_is_that_of_its_model_calls(
    model_seed: int | None, tmp_path: Path
) -> None:
    write_task(tmp_path / "greet")

    def reply(request: ModelRequest) -> ModelReply:
        del request
        return ModelReply(text="Done.")

    with ScriptedLlm(reply) as llm:
        config = {"base_url": f"{llm.url}/v1", "seed": model_seed}
        result = asyncio.run(
            run(
                tmp_path / "greet",
                config=RunConfig.model_validate({"model": config}),
                agent="policy",
                model="m",
                seed=5,
                deadline_sec=600,
                jobs_dir=tmp_path / "jobs",
            )
        )
        [request] = llm.requests
    assert result.directory is not None
    [call] = StoredRollout(result.directory).read_finished().calls.values()
    assert request.raw["seed"] == call_seed(model_seed or 5, call.id)
    assert (result.record.seed, result.record.deadline_sec) == (5, 600)
    assert RunInputs.read(result.directory).config.seed == 5
