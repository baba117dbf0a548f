"""Make an agent ask in a probe, and check that the right answer arrived."""

from collections.abc import Awaitable, Callable

from benchflow_contracts import AgentError, Answer, Ask

from .code_words import SandboxedSession
from .declaration import AgentDecl

PROBE_FILE = "benchflow-probe.txt"
PROBE_TEXT = "benchflow"
WRITE_PROMPT = f"Write the word {PROBE_TEXT} into the file {PROBE_FILE}. Use a tool, do not ask."
ASK_PROMPT = (
    "Ask me with your question tool whether I want Tea, Coffee or Cocoa, then say what I want."
)

_MAX_ANSWERS = 3


class QuestionProbe:
    """A prompt that leads to an Ask, and the possible answers by number.

    If the agent asks questions, the prompt asks for a question. Other agents must ask for
    permission to write a file: answer 0 allows the write, answer 1 refuses it.
    """

    def __init__(self, decl: AgentDecl) -> None:
        self._asks_permission = decl.ask.channel == "permission"

    def answer_count(self, ask: Ask) -> int:
        """Return the number of different answers to try."""
        return len(self._options(ask))

    def is_same(self, first: Ask, second: Ask) -> bool:
        """Return whether two Asks are equal. A permission may have a new tool call id."""
        if not self._asks_permission:
            return first.questions == second.questions
        return first.questions[0].options == second.questions[0].options

    async def run(
        self,
        branch: SandboxedSession,
        number: int,
        *,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> Ask:
        """Run the whole turn with one answer; return the Ask.

        `meanwhile` is called while the agent waits for the answer.

        Raises:
            AgentError: The agent did not ask, or another answer arrived.
        """
        asks: list[Ask] = []

        async def answer(ask: Ask) -> Answer:
            if asks or ask.kind != ("permission" if self._asks_permission else "question"):
                return Answer.choose(ask, ask.questions[0].options[0].id)
            asks.append(ask)
            if meanwhile is not None:
                await meanwhile()
            return Answer.choose(ask, self._options(ask)[number])

        branch.session.on_ask_user(answer)
        before = len(branch.session.steps)
        await branch.session.prompt(WRITE_PROMPT if self._asks_permission else ASK_PROMPT)
        if not asks:
            raise AgentError("the turn ended without a question")
        await self._check(branch, asks[0], number, before)
        return asks[0]

    async def answer(self, branch: SandboxedSession, ask: Ask, number: int) -> None:
        """Answer the Ask of a forked session and run the rest of the turn.

        Raises:
            AgentError: Another answer arrived.
        """

        async def first(later: Ask) -> Answer:
            return Answer.choose(later, later.questions[0].options[0].id)

        branch.session.on_ask_user(first)
        before = len(branch.session.steps)
        await branch.session.answer(Answer.choose(ask, self._options(ask)[number]))
        await self._check(branch, ask, number, before)

    def _options(self, ask: Ask) -> list[str]:
        options = ask.questions[0].options
        if not self._asks_permission:
            return [option.id for option in options[:_MAX_ANSWERS]]
        kinds = {option.kind: option.id for option in reversed(options)}
        return [kinds[kind] for kind in ("allow_once", "reject_once") if kind in kinds]

    async def _check(self, branch: SandboxedSession, ask: Ask, number: int, before: int) -> None:
        if self._asks_permission:
            file_exists = (await branch.sandbox.exec(["test", "-e", PROBE_FILE], timeout=60)).ok
            if file_exists != (number == 0):
                raise AgentError(f"the answer was {number}, but the file shows another answer")
            return
        text = "\n".join(step.message for step in branch.session.steps[before:])
        labels = [option.label for option in ask.questions[0].options[:_MAX_ANSWERS]]
        named = [label for label in labels if label in text]
        if named != [labels[number]]:
            raise AgentError(f"the answer was {labels[number]!r}, but the agent said {text!r:.200}")
