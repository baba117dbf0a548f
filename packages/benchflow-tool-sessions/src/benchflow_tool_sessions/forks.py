"""The sessions of one rollout: the first one, and those into which sessions were forked."""

import asyncio
from uuid import uuid4

from benchflow_contracts import (
    Answer,
    Ask,
    AskOption,
    BenchFlowError,
    Event,
    NodeFailed,
    Question,
    RolloutNode,
    UsageError,
    WorldClosed,
)
from benchflow_kernel import value_of
from benchflow_kernel.config import BranchBudget, CallerBranch
from benchflow_kernel.errors import FidelityError, WorldFidelityError
from benchflow_kernel.tree import TreeFold

from .driver import Driver
from .results import Outcome, SessionLimitError, SessionLimits


class ForkRefusedError(BenchFlowError):
    """The session was not forked, and continues."""

    boundary = "snapshot"
    default_hint = "`branch.reason` of the last node in the record says why"


class DriverTree:
    """The drivers of one rollout. It follows the events of the rollout."""

    def __init__(self, limits: SessionLimits) -> None:
        self._most = limits.sessions
        self._limits = limits
        self.root = Driver(limits)
        self._children: dict[tuple[str, str], Driver] = {}
        """By the id of the Ask, and the option."""
        self._by_sandbox: dict[str, Driver] = {}
        self._fold = TreeFold()
        self._changed = asyncio.Event()
        self._cannot_fork: FidelityError | None = None
        """Why no session can be forked."""
        self.has_begun = False
        """Whether the rollout has an event."""

    def refuse_forks(self, reason: FidelityError) -> None:
        """Refuse all forks: the sandbox or the world cannot be copied."""
        self._cannot_fork = reason

    @property
    def policy(self) -> CallerBranch | None:
        """The policy of the rollout; `None` if its session may not be forked."""
        if self._most < 2:
            return None
        most = self._most
        budget = BranchBudget(max_children=most, max_depth=most, concurrency=most)
        return CallerBranch(budget=budget)

    @property
    def drivers(self) -> list[Driver]:
        """All drivers."""
        return [self.root, *self._children.values()]

    def of_sandbox(self, sandbox: str) -> Driver:
        """Return the driver of the session in a sandbox."""
        return self._by_sandbox.get(sandbox, self.root)

    def bind(self, sandbox: str, ask: Ask, answer: Answer) -> Driver:
        """Note that a sandbox is that of the child which `answer` names; return the driver."""
        [option] = answer.selected[ask.questions[0].id]
        driver = self._by_sandbox[sandbox] = self._children[ask.id, option]
        return driver

    async def fork(self, parent: Driver, n: int) -> list[Driver]:
        """Fork a session at its open turn. Return the drivers of the children, which have begun.

        A child that could not begin has ended.

        Raises:
            UsageError: `n` is smaller than 2, or the session may not be forked.
            SessionLimitError: The rollout would have too many sessions.
            ForkRefusedError: The world cannot be copied, or the kernel refused.
                The session continues.
            SessionEndedError: The session has ended.
        """
        self._check(n)
        ask = _request(n)
        for option in ask.questions[0].options:
            key = (ask.id, option.id)
            child = Driver(self._limits, prompt=parent.prompt, calls=parent.calls, key=key)
            self._children[key] = child
            parent.children.append(child)
        children = list(parent.children)
        try:
            is_forked = await parent.fork(ask)
        except BenchFlowError:
            self._forget(parent)
            raise
        if not is_forked:
            self._forget(parent)
            raise ForkRefusedError(f"the session was not forked: {self._refusal()}")
        for child in children:
            await _wait_started(child)
        return children

    def receive(self, event: Event) -> None:
        """Follow an event of the rollout."""
        self.has_begun = True
        self._fold.apply(event)
        if isinstance(event, WorldClosed):
            self._close_world(event.node)
        elif isinstance(event, NodeFailed) and event.parent is None:
            self._fail_fork(self._fold.tree.index[event.node])

    def end(self, reason: str | None) -> None:
        """Note that the rollout has ended."""
        for driver in self.drivers:
            driver.has_verdict = True
            driver.end(reason)
        self._notify()

    async def wait_over(self, driver: Driver) -> None:
        """Wait until a session and its children have ended and are graded."""
        while not driver.is_over:
            await self._changed.wait()

    def outcome_of(self, driver: Driver) -> Outcome:
        """Return the outcome of a child that is over. Its rollout may still run."""
        node = self._node_of(driver)
        if node is None:
            reason = driver.reason or "the session did not begin"
            return Outcome(None, {}, reason, reason, None)
        if driver.children:
            value = value_of(node)
            if value is None:
                return Outcome(None, {}, "no session below has a reward", None, None)
            return Outcome(value.mean, {}, None, None, None)
        leaf = node.leaves[0]
        verdict, error = leaf.results.get("reward"), leaf.error
        failure = None if error is None else f"{error.type}: {error.message}"
        ended = driver.reason or failure
        if verdict is not None and leaf.reward is not None:
            return Outcome(leaf.reward, verdict.items, None, ended, None)
        why = None if verdict is None else verdict.counted().error
        return Outcome(None, {}, why or failure or "the session was not graded", ended, None)

    def _check(self, n: int) -> None:
        if n < 2:
            raise UsageError(f"a fork into {n} sessions is not a fork", hint="use 2 or more")
        if self._most < 2:
            raise UsageError(
                "the session may not be forked", hint="open it with SessionLimits(sessions=N)"
            )
        if self._cannot_fork is not None:
            is_world = isinstance(self._cannot_fork, WorldFidelityError)
            raise ForkRefusedError(
                f"the session cannot be forked: {self._cannot_fork}",
                hint="open a session of its own for each attempt: the world has no snapshots"
                if is_world
                else "use a sandbox with snapshots; `bench doctor` lists them",
            )
        leaves = len(self.root.leaves) + n - 1
        if leaves > self._most:
            raise SessionLimitError(
                f"the rollout would have {leaves} sessions, and the limit is {self._most}",
                hint="raise SessionLimits.sessions",
                retryable=False,
            )

    def _refusal(self) -> str:
        """Return the reason of the last fork that the kernel refused."""
        records = [node.branch for node in self._fold.tree.nodes if node.branch is not None]
        refused = [record.reason for record in records if record.children == 0]
        return refused[-1].removeprefix("not forked: ") if refused else "the record has no reason"

    def _forget(self, parent: Driver) -> None:
        """Delete the children of a fork that was refused."""
        for child in parent.children:
            if child.key is not None:
                del self._children[child.key]
        parent.children.clear()

    def _close_world(self, node_id: str) -> None:
        node = self._fold.tree.index.get(node_id)
        driver = None if node is None else self._driver_of(node)
        if driver is None:
            return
        driver.has_verdict = True
        error = None if node is None or node.step is not None else node.error
        driver.end(None if error is None else error.message)
        self._notify()

    def _driver_of(self, node: RolloutNode) -> Driver | None:
        """Return the driver of the world that begins at a node."""
        if node.parent is None:
            return self.root
        step = node.parent.step
        if step is None or step.ask is None or node.label is None:
            return None
        return self._children.get((step.ask.id, node.label))

    def _fail_fork(self, node: RolloutNode) -> None:
        """End the children of a fork that failed: their worlds are never made."""
        ask = None if node.step is None else node.step.ask
        for key, child in self._children.items():
            if ask is not None and key[0] == ask.id and child.state == "starting":
                child.has_verdict = True
                child.end(None if node.error is None else node.error.message)
        self._notify()

    def _node_of(self, driver: Driver) -> RolloutNode | None:
        """Return the node at which the world of a child begins."""
        return next((n for n in self._fold.tree.nodes if self._driver_of(n) is driver), None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _wait_started(driver: Driver) -> None:
    await driver.wait(lambda: driver.state != "starting")


def _request(n: int) -> Ask:
    options = tuple(AskOption(id=str(k), label=str(k)) for k in range(1, n + 1))
    question = Question(id="fork", text=f"Fork into {n} sessions.", options=options)
    return Ask(id=uuid4().hex, channel="vendor", kind="fork", questions=(question,))
