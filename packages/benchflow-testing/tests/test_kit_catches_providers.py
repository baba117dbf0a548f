"""The kit can fail: what a provider breaks, of its images, records and networks, is caught."""

import asyncio

import pytest
from benchflow_contracts import (
    SandboxError,
    SandboxUnsupportedError,
)
from benchflow_testing import check_sandbox, sandbox_checks
from benchflow_testing.fakes import (
    FakeSandboxProvider,
)

pytestmark = pytest.mark.usefixtures("impatient")


class SharedImages(FakeSandboxProvider):
    """Children of one image write to the same files."""

    def __init__(self, **rest):
        super().__init__(**rest)
        self.images.open = lambda image: self.images._sealed.get(image.ref)


class UnsealedImages(FakeSandboxProvider):
    """A snapshot goes on changing with its sandbox."""

    def __init__(self, **rest):
        super().__init__(**rest)
        seal = self.images.seal

        def share(machine, provider, level):
            image = seal(machine, provider, level)
            self.images._sealed[image.ref] = machine
            return image

        self.images.seal = share


class DiscardEndsSandboxes(FakeSandboxProvider):
    async def discard(self, image):
        for sandbox in self.live[1:]:
            await sandbox.teardown()
        await super().discard(image)


class DropsIdentity(FakeSandboxProvider):
    async def create(self, spec, *, image=None, identity=None):
        return await super().create(spec, image=image)


class IgnoresTheScope(FakeSandboxProvider):
    async def sandboxes(self, *, scope=None):
        async for record in super().sandboxes():
            yield record


class ReapsTheLiving(FakeSandboxProvider):
    async def reap(self, policy):
        for sandbox in self.live:
            self.abandon(sandbox)
        return await super().reap(policy)


class ReadyOnlyOnce(FakeSandboxProvider):
    async def ready(self):
        if "ready" in self.operations:
            raise SandboxError("the engine is taken")
        await super().ready()


class LeavesSandboxes(FakeSandboxProvider):
    async def aclose(self):
        return


class AcceptsEveryNetwork(FakeSandboxProvider):
    async def create(self, spec, **rest):
        try:
            return await super().create(spec, **rest)
        except SandboxUnsupportedError:
            return await super().create(spec.model_copy(update={"network": "none"}), **rest)


class AcceptsEverySwitch(FakeSandboxProvider):
    async def create(self, spec, **rest):
        return await super().create(spec.model_copy(update={"switches": ()}), **rest)


BROKEN_PROVIDERS = [
    (ReadyOnlyOnce, "the_provider_is_ready"),
    (SharedImages, "siblings_and_parent_are_isolated"),
    (SharedImages, "many_children_start_at_once"),
    (UnsealedImages, "later_writes_are_not_in_a_snapshot"),
    (DiscardEndsSandboxes, "sandboxes_survive_the_discard_of_their_snapshot"),
    (DropsIdentity, "records_have_the_identity"),
    (IgnoresTheScope, "a_scope_lists_only_its_sandboxes"),
    (ReapsTheLiving, "reap_leaves_live_sandboxes_alone"),
    (LeavesSandboxes, "closing_the_provider_leaves_no_sandbox"),
    (AcceptsEverySwitch, "an_unsupported_switch_is_refused_at_once"),
    (AcceptsEveryNetwork, "an_unsupported_network_is_refused"),
]


@pytest.mark.parametrize(("broken", "name"), BROKEN_PROVIDERS)
def test_a_broken_provider_fails_the_check_of_its_promise(broken, name, status_of):
    assert status_of(broken(), name) == "failed"


def test_a_provider_that_cannot_create_fails_every_check_and_hides_none():
    provider = FakeSandboxProvider(fail_on={"create": SandboxError("no room")})
    results = asyncio.run(check_sandbox(provider))
    assert len(results) == len(sandbox_checks())
    passed = {result.name for result in results if result.status == "passed"}
    assert passed == {"the_live_engine_is_named", "a_missing_saved_snapshot_is_not_loaded"}
    assert all("no room" in result.reason for result in results if result.status == "failed")
    denied = ("capabilities: ", "every ")
    skipped = [result.reason for result in results if result.status == "skipped"]
    assert all(reason.startswith(denied) for reason in skipped)
