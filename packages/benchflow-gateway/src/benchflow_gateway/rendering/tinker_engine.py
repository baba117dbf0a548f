"""Tinker's sampling as an engine, through its own client: `pip install tinker`."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from benchflow_contracts import UsageError

from benchflow_gateway.errors import RefusedError

from .engines import Sampled, Sampling

_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k", "seed"})
"""What Tinker's `SamplingParams` of tinker 0.38 has, besides the limit and the stop tokens."""
_NEUTRAL: Final[Mapping[str, float]] = {
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
}
"""Other parameters, at the values that have no effect."""


class TinkerEngine:
    """Samples by the package `tinker`. The model is a path `tinker://...`, or a base model.

    The path of the weights is the policy version of the tokens. A base model has no version.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        """Prepare the engine, without a request.

        Raises:
            UsageError: The package `tinker` is not installed.
        """
        try:
            self._tinker: Any = import_module("tinker")
        except ImportError as error:
            raise UsageError(
                f"the engine 'tinker' needs {error.name}", hint="pip install tinker"
            ) from error
        self._url = url
        self._api_key = api_key
        self._service: Any = None
        self._clients: dict[str, Any] = {}

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int], model: str
    ) -> Sampled:
        """See `Engine`. A parameter that Tinker does not have is refused, and not ignored."""
        params = self._params(sampling, stop)
        try:
            client = await self._client(model)
            response = await client.sample(
                prompt=self._tinker.types.ModelInput.from_ints(list(prompt)),
                num_samples=1,
                sampling_params=params,
            )
        except self._tinker.TinkerError as error:
            message = f"the engine failed ({type(error).__name__})"
            raise RefusedError("upstream", 502, message) from error
        [sequence] = response.sequences
        tokens, logprobs = tuple(sequence.tokens), sequence.logprobs
        if not tokens:
            raise RefusedError("upstream", 502, "the engine sent no token ids")
        if logprobs is not None:
            logprobs = tuple(logprobs) if len(logprobs) == len(tokens) else None
        return Sampled(
            tokens,
            logprobs,
            sequence.stop_reason,
            model if model.startswith("tinker://") else None,
        )

    def _params(self, sampling: Sampling, stop: Sequence[int]) -> Any:  # noqa: ANN401 - of tinker
        values = dict(sampling.values)
        for name in values.keys() - _SAMPLING:
            if values.pop(name) != _NEUTRAL.get(name):
                message = f"{name}: Tinker does not have this parameter"
                raise RefusedError("invalid", 400, message)
        limit = sampling.max_tokens
        return self._tinker.types.SamplingParams(max_tokens=limit, stop=list(stop), **values)

    async def _client(self, model: str) -> Any:  # noqa: ANN401 - of tinker
        if model not in self._clients:
            if self._service is None:
                self._service = self._tinker.ServiceClient(
                    base_url=self._url, api_key=self._api_key
                )
            name = "model_path" if model.startswith("tinker://") else "base_model"
            self._clients[model] = await self._service.create_sampling_client(**{name: model})
        return self._clients[model]
