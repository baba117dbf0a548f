"""Making an agent ask in a probe, and seeing that the right answer reached it."""

from collections.abc import Awaitable, Callable

from benchflow_contracts import AgentError, Answer, Ask

from .code_words import Place
from .declaration import AgentDecl

PROBE_FILE = "benchflow-probe.txt"
PROBE_TEXT = "benchflow"
WRITE_PROMPT = f"Write the word {PROBE_TEXT} into the file {PROBE_FILE}. Use a tool, do not ask."
ASK_PROMPT = (
    "Ask me with your question tool whether I want Tea, Coffee or Cocoa, then say what I want."
)

_MOST = 3


class Asking:
    """One prompt that leads to an Ask, and its answers by number.

    An agent that asks questions is asked for one. Any other is made to ask whether it
    may write a file: answer 0 allows it and answer 1 does not.
    """

    def __init__(self, decl: AgentDecl) -> None:
        self._gate = decl.ask.channel == "permission"

    def answers(self, ask: Ask) -> int:
        """Return how many different answers are tried."""
        return len(self._options(ask))

    def same(self, one: Ask, other: Ask) -> bool:
        """Return whether both ask the same. A gate may name its call by a fresh id."""
        if not self._gate:
            return one.questions == other.questions
        return one.questions[0].options == other.questions[0].options

    async def run(
        self, place: Place, number: int, *, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Ask:
        """Run the whole turn with one answer; return the Ask.

        `meanwhile` is called while the agent waits for it.

        Raises:
            AgentError: Nothing was asked, or another answer arrived.
        """
        asked: list[Ask] = []

        async def answer(ask: Ask) -> Answer:
            if asked or ask.kind != ("permission" if self._gate else "question"):
                return Answer.choose(ask, ask.questions[0].options[0].id)
            asked.append(ask)
            if meanwhile is not None:
                await meanwhile()
            return Answer.choose(ask, self._options(ask)[number])

        place.session.on_ask_user(answer)
        before = len(place.session.steps)
        await place.session.prompt(WRITE_PROMPT if self._gate else ASK_PROMPT)
        if not asked:
            raise AgentError("the turn ended without a question")
        await self._check(place, asked[0], number, before)
        return asked[0]

    async def proceed(self, place: Place, ask: Ask, number: int) -> None:
        """Answer a carried Ask and run the rest of its turn.

        Raises:
            AgentError: Another answer arrived.
        """

        async def first(later: Ask) -> Answer:
            return Answer.choose(later, later.questions[0].options[0].id)

        place.session.on_ask_user(first)
        before = len(place.session.steps)
        await place.session.proceed(Answer.choose(ask, self._options(ask)[number]))
        await self._check(place, ask, number, before)

    def _options(self, ask: Ask) -> list[str]:
        options = ask.questions[0].options
        if not self._gate:
            return [option.id for option in options[:_MOST]]
        kinds = {option.kind: option.id for option in reversed(options)}
        return [kinds[kind] for kind in ("allow_once", "reject_once") if kind in kinds]

    async def _check(self, place: Place, ask: Ask, number: int, before: int) -> None:
        if self._gate:
            written = (await place.box.exec(["test", "-e", PROBE_FILE], timeout=60)).ok
            if written != (number == 0):
                raise AgentError(f"answer {number} was given, but the file says another one")
            return
        said = "\n".join(step.message for step in place.session.steps[before:])
        labels = [option.label for option in ask.questions[0].options[:_MOST]]
        heard = [label for label in labels if label in said]
        if heard != [labels[number]]:
            raise AgentError(f"{labels[number]!r} was answered, but it said {said!r:.200}")
