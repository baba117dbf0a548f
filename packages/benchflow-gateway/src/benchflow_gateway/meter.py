"""The meter of a route's budget."""

from collections.abc import Iterable

from benchflow_contracts import CallBudget, ModelApi, ModelCall, Usage

from .conversation import messages_of
from .documents import DocumentError, read_document
from .errors import CallBudgetError, RefusedError
from .prices import PriceTable, price_of


class Meter:
    """Counts calls, tokens and dollars.

    A call is refused if a limit is already reached at its start. Its own tokens are known only at
    its end, so concurrent calls may exceed the limit together.
    """

    def __init__(self, budget: CallBudget | None, prices: PriceTable) -> None:
        self._budget = budget or CallBudget()
        self._prices = prices
        self.calls = 0
        self.tokens = 0
        self.cost_usd = 0.0

    def add_past_calls(self, calls: Iterable[ModelCall]) -> None:
        """Count the use of the same route by an earlier process."""
        for call in calls:
            if not call.replayed and not call.diverged:
                self.calls += 1
                self.tokens += call.usage.input_tokens + call.usage.output_tokens
                self.cost_usd += call.cost_usd or 0.0

    def begin(self, model: str | None) -> None:
        """Count a call that goes to the upstream.

        Raises:
            CallBudgetError: A limit is reached, or the price for a limit is unknown.
        """
        budget = self._budget
        if budget.calls is not None and self.calls >= budget.calls:
            raise CallBudgetError(f"{self.calls} of {budget.calls} calls are used")
        if budget.tokens is not None and self.tokens >= budget.tokens:
            raise CallBudgetError(f"{self.tokens} of {budget.tokens} tokens are used")
        if budget.cost_usd is not None:
            price = price_of(model, self._prices)
            if price is None:
                hint = "give the gateway a price for it"
                raise CallBudgetError(f"the price of the model {model!r} is not known", hint=hint)
            spent = self.cost_usd + price.of(budget.earlier)
            if spent >= budget.cost_usd:
                message = f"{spent:.4f} of {budget.cost_usd:.4f} USD are spent"
                raise CallBudgetError(message)
        self.calls += 1

    def check_messages(self, api: ModelApi, text: bytes) -> None:
        """Compare the messages of a request with the limit.

        Raises:
            CallBudgetError: The limit is reached, or the messages cannot be counted.
        """
        limit = self._budget.messages
        if limit is None:
            return
        try:
            count = len(messages_of(api, read_document(text)))
        except (RefusedError, DocumentError) as error:
            raise CallBudgetError(f"the messages of the call cannot be counted: {error}") from error
        if count >= limit:
            raise CallBudgetError(f"the call has {count} messages, and the limit is {limit}")

    def end(self, model: str | None, usage: Usage) -> float | None:
        """Charge the usage of a call. Return its cost if the price is known."""
        self.tokens += usage.input_tokens + usage.output_tokens
        price = price_of(model, self._prices)
        if price is None:
            return None
        cost = price.of(usage)
        self.cost_usd += cost
        return cost
