"""The kit can fail: services that are run otherwise than their spec says fail the check of it."""

import asyncio

import pytest
from benchflow_sandbox_docker import DockerProvider
from benchflow_testing import check_sandbox
from benchflow_testing import sandbox_subject as subject_module


class Careless(DockerProvider):
    """Makes boxes of another spec than it was given, and has its way with them."""

    def __init__(self, change, spoil, capabilities, **rest):
        super().__init__(**rest)
        self._given_capabilities = capabilities
        self._change = change
        self._spoil = spoil
        self._made = []

    async def capabilities(self):
        return self._given_capabilities

    async def create(self, spec, *, image=None, identity=None):
        changed = spec.model_copy(update=self._change(spec))
        box = await super().create(changed, image=image, identity=identity)
        self._made.append(box)
        self._spoil(box)
        return box

    async def aclose(self):
        for box in self._made:
            vars(box).pop("teardown", None)
        await super().aclose()


def services(**update):
    def change(spec):
        return {"services": tuple(each.model_copy(update=update) for each in spec.services)}

    return change


def nothing(_):
    return {}


def waits_for_nobody(spec):
    return {**services(needs={}, health=None)(spec), "container": waiting(spec, {})}


def waits_for_a_start(spec):
    started = dict.fromkeys(spec.container.needs, "started")
    return {**services(health=None)(spec), "container": waiting(spec, started)}


def waiting(spec, needs):
    return spec.container.model_copy(update={"needs": needs})


def without(spec):
    return {"services": (), "container": waiting(spec, {})}


def always_well(box):
    async def service_exec(_service, _cmd, **_rest):
        return 0

    box.service_exec = service_exec


def without_caps(box):
    real = box.service_download

    async def service_download(service, remote, local, **_rest):
        await real(service, remote, local)

    box.service_download = service_download


def names_itself_alone(box):
    box.container.image_digests = {"main": box.image_digests["main"]}


def lives_on(box):
    async def teardown():
        return

    box.teardown = teardown


@pytest.fixture(scope="module")
def capabilities(image, tmp_path_factory):
    """Probe once for all tests of this file."""

    async def main():
        store = tmp_path_factory.mktemp("probe") / "store"
        async with DockerProvider(image=image, store=store) as provider:
            return await provider.capabilities()

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "spoil"),
    [
        ("a_service_is_reached_by_its_name", services(networks={}), nothing),
        ("create_waits_for_needed_services", waits_for_nobody, nothing),
        ("a_service_that_fails_is_named", without, nothing),
        ("a_service_that_is_never_healthy_is_named", waits_for_a_start, nothing),
        ("a_command_in_a_service_returns_its_exit_code", nothing, always_well),
        ("files_of_a_service_are_copied_out", nothing, without_caps),
        ("a_service_has_a_digest_of_its_own", nothing, names_itself_alone),
        ("services_end_with_their_sandbox", nothing, lives_on),
        ("a_public_network_has_a_route", lambda _: {"network": "none"}, nothing),
    ],
)
def test_a_careless_provider_fails_the_check(
    image, tmp_path, monkeypatch, capabilities, name, change, spoil
):
    monkeypatch.setattr(subject_module, "PATIENCE_SEC", 1.0)

    async def main():
        store = tmp_path / "store"
        async with Careless(change, spoil, capabilities, image=image, store=store) as provider:
            (result,) = await check_sandbox(provider, base=image, only=[name])
        return result

    result = asyncio.run(main())
    # A host without a route says so instead.
    assert result.status == "failed" or "no route that leads out" in result.reason, result
