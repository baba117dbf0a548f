"""Proof for type checkers that each fake satisfies its Protocol."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchflow_contracts.agent import Agent, Session
    from benchflow_contracts.environment import Environment, EnvironmentFactory
    from benchflow_contracts.gateway import ModelGateway, ModelRoute
    from benchflow_contracts.process import ByteReader, ByteWriter, Process
    from benchflow_contracts.reward import GroupReward, Reward
    from benchflow_contracts.sandbox import Sandbox, SandboxProvider
    from benchflow_contracts.task_listing import TaskSource
    from benchflow_contracts.user import UserModel

    from .agent import FakeAgent
    from .environment import FakeEnvironment
    from .gateway import FakeModelGateway, FakeModelRoute
    from .pipe import FakePipe
    from .process import FakeProcess
    from .provider import FakeSandboxProvider
    from .reward import FakeGroupReward, FakeReward
    from .sandbox import FakeSandbox
    from .session import FakeSession
    from .task_source import FakeTaskSource
    from .user import FakeUserModel

    def sandboxes(
        provider: FakeSandboxProvider, sandbox: FakeSandbox, process: FakeProcess, pipe: FakePipe
    ) -> tuple[SandboxProvider, Sandbox, Process, ByteReader, ByteWriter]:
        """Return the fakes as their Protocols."""
        return provider, sandbox, process, pipe, pipe

    def agents(agent: FakeAgent, session: FakeSession) -> tuple[Agent, Session]:
        """Return the fakes as their Protocols."""
        return agent, session

    def environments(environment: FakeEnvironment) -> tuple[Environment, EnvironmentFactory]:
        """Return the fake as its Protocol."""
        return environment, FakeEnvironment

    def judges(reward: FakeReward, user: FakeUserModel) -> tuple[Reward, UserModel]:
        """Return the fakes as their Protocols."""
        return reward, user

    def groups(reward: FakeGroupReward, source: FakeTaskSource) -> tuple[GroupReward, TaskSource]:
        """Return the fakes as their Protocols."""
        return reward, source

    def gateways(
        gateway: FakeModelGateway, route: FakeModelRoute
    ) -> tuple[ModelGateway, ModelRoute]:
        """Return the fakes as their Protocols."""
        return gateway, route
