"""The kit can fail: a provider that takes a part of a spec lightly fails the check of it."""

import asyncio
from hashlib import sha256

import pytest
from benchflow_contracts import ContainerOptions, SandboxSpec
from benchflow_testing import check_sandbox
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider

DIGEST = f"sha256:{'0' * 64}"
NO_OPTIONS = ContainerOptions()


pytestmark = pytest.mark.usefixtures("impatient")


class FillsNothingIn(FakeSandboxProvider):
    async def create(self, spec, **rest):
        sandbox = await super().create(spec, **rest)
        sandbox._spec = spec
        return sandbox


class SaysAnotherUser(FakeSandboxProvider):
    async def create(self, spec, **rest):
        sandbox = await super().create(spec, **rest)
        sandbox.on("id", lambda call: answer(sandbox, call))
        return sandbox


async def answer(sandbox, call):
    return await sandbox.exec(f"true; {call.cmd}", user="root" if call.user != "root" else "agent")


class FillsAChildInOtherwise(FakeSandboxProvider):
    async def create(self, spec, *, image=None, **rest):
        given = spec if image is None else spec.model_copy(update={"workdir": "/tmp"})
        return await super().create(given, image=image, **rest)


class KnowsOneUser(FakeSandboxProvider):
    async def create(self, spec, **rest):
        return await super().create(spec.model_copy(update={"user": "agent"}), **rest)


class MakesAClosedWorkdir(FakeSandboxProvider):
    async def create(self, spec, **rest):
        sandbox = await super().create(spec, **rest)
        sandbox.files.chown(spec.workdir, "root")
        sandbox.files.chmod(spec.workdir, 0o700)
        return sandbox


class StartsNothing(FakeSandbox):
    def start_entrypoint(self):
        return


class StartsTwice(FakeSandbox):
    def start_entrypoint(self):
        super().start_entrypoint()
        super().start_entrypoint()


class StartsAsTheAgent(FakeSandbox):
    def _call(self, cmd, user, cwd, env, **rest):
        return super()._call(cmd, None if cwd == "/" else user, cwd, env, **rest)


def names(**told):
    class Names(FakeSandbox):
        image_digests = told

    return Names


class NamesEachOneOtherwise(FakeSandbox):
    @property
    def image_digests(self):
        return {"main": f"sha256:{sha256(self.id.encode()).hexdigest()}"}


class Drops(FakeSandboxProvider):
    """Does without what it does not have."""

    async def create(self, spec, **rest):
        kept = SandboxSpec(network=spec.network, user=spec.user, workdir=spec.workdir)
        return await super().create(kept, **rest)


class DropsContainerOptions(FakeSandboxProvider):
    async def create(self, spec, **rest):
        return await super().create(spec.model_copy(update={"container": NO_OPTIONS}), **rest)


def provider_of(sandbox_type):
    return lambda: FakeSandboxProvider(sandbox_type=sandbox_type)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (FillsNothingIn, "the_spec_has_the_values_of_the_image"),
        (SaysAnotherUser, "the_spec_has_the_values_of_the_image"),
        (FillsAChildInOtherwise, "a_child_has_the_same_values_of_the_image"),
        (KnowsOneUser, "a_missing_user_is_made"),
        (KnowsOneUser, "a_user_may_be_a_number"),
        (MakesAClosedWorkdir, "a_missing_user_is_made"),
        (MakesAClosedWorkdir, "a_user_may_be_a_number"),
        (provider_of(StartsNothing), "an_entrypoint_runs_once_from_the_start"),
        (provider_of(StartsTwice), "an_entrypoint_runs_once_from_the_start"),
        (provider_of(StartsAsTheAgent), "an_entrypoint_runs_once_from_the_start"),
        (provider_of(names(main="python:3.12")), "the_same_spec_has_the_same_digest"),
        (provider_of(names(main="x@sha256:12")), "the_same_spec_has_the_same_digest"),
        (provider_of(names(other=DIGEST)), "the_same_spec_has_the_same_digest"),
        (provider_of(NamesEachOneOtherwise), "the_same_spec_has_the_same_digest"),
        (Drops, "a_recipe_is_refused_if_unsupported"),
        (Drops, "services_are_refused_if_unsupported"),
        (DropsContainerOptions, "services_are_refused_if_unsupported"),
        (Drops, "allowed_hosts_need_an_allowlist_network"),
        (Drops, "a_model_needs_another_network_than_none"),
    ],
)
def test_an_ignored_part_of_a_spec_fails_its_check(make, name):
    provider = make()

    async def main():
        try:
            (result,) = await check_sandbox(provider, only=[name])
        finally:
            for sandbox in provider.created:
                await sandbox.machine.halt()
        return result

    result = asyncio.run(main())
    assert result.status == "failed", result
