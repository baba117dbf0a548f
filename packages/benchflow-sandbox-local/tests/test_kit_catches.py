"""The kit can fail: boxes that are made otherwise than their spec says fail the check of it."""

import asyncio
from uuid import uuid4

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_testing import check_sandbox
from benchflow_testing import sandbox_subject as subject_module

BASE = "host-programs"


class Careless(LocalProvider):
    """Makes boxes of another spec than it was given."""

    def __init__(self, change, **rest):
        super().__init__(**rest)
        self._change = change

    async def create(self, spec, *, image=None, identity=None):
        changed = spec.model_copy(update=self._change(spec, image))
        return await super().create(changed, image=image, identity=identity)


def always(**update):
    return lambda _spec, _image: update


def builds_anew(spec, _image):
    (spec.recipe.context / "greeting").write_text(uuid4().hex)
    return {}


def builds_one_thing(spec, _image):
    (spec.recipe.context / "text").write_text("any")
    return {}


def builds_another_thing(spec, _image):
    (spec.recipe.context / "text").write_text(uuid4().hex)
    return {}


def forgets_children(_spec, image):
    return {} if image is None else {"entrypoint": None}


def keeps_no_headers(spec, _image):
    return {"doors": tuple(door.model_copy(update={"headers": {}}) for door in spec.doors)}


def tells_the_headers(spec, _image):
    return {"env": dict(spec.doors[0].headers) if spec.doors else {}}


def leads_all_doors_to_one_upstream(spec, _image):
    return {
        "doors": tuple(
            door.model_copy(update={"upstream": spec.doors[0].upstream}) for door in spec.doors
        )
    }


ROOTS = ("/srv/kit/entry", "sh", "-c", "sleep infinity")


@pytest.mark.usefixtures("with_provider")  # which says that root is needed
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a_recipe_builds_the_image_of_its_dockerfile", always(user="agent")),
        ("a_recipe_builds_the_image_of_its_dockerfile", always(env={"GREETING": "bye"})),
        ("the_same_bytes_are_built_once", builds_anew),
        ("other_bytes_have_another_digest", builds_one_thing),
        ("other_bytes_have_another_digest", builds_another_thing),
        ("a_build_that_fails_is_an_error", always(recipe=None, image=BASE)),
        ("a_recipe_with_an_image_is_refused", always(image=None)),
        ("an_unknown_image_is_an_error", always(image=None)),
        ("the_images_entrypoint_runs_with_the_settings_of_the_image", always(entrypoint=None)),
        ("the_images_entrypoint_runs_with_the_settings_of_the_image", always(entrypoint=ROOTS)),
        ("a_sandbox_from_a_snapshot_runs_the_images_entrypoint", forgets_children),
        ("the_images_entrypoint_runs_only_on_request", always(entrypoint="image")),
        ("an_entrypoint_of_the_image_that_fails_is_an_error", always(entrypoint=None)),
        (
            "create_waits_for_a_slow_entrypoint",
            always(entrypoint=ROOTS),
        ),
        (
            "create_waits_for_the_images_healthcheck",
            always(entrypoint=ROOTS),
        ),
        ("only_allowed_hosts_are_reachable", always(allowed_hosts=("127.0.0.0/8",))),
        ("only_allowed_hosts_are_reachable", always(allowed_hosts=())),
        ("loopback_works_in_every_network", always(env={"NO_PROXY": "", "no_proxy": ""})),
        ("the_model_answers_in_every_network_but_none", keeps_no_headers),
        ("the_model_answers_in_every_network_but_none", tells_the_headers),
        ("two_doors_lead_to_two_upstreams", leads_all_doors_to_one_upstream),
        ("two_doors_lead_to_two_upstreams", keeps_no_headers),
        ("doors_must_differ_in_name_and_port", always(doors=())),
    ],
)
def test_a_careless_provider_fails_the_check(tmp_path, monkeypatch, name, change):
    monkeypatch.setattr(subject_module, "PATIENCE_SEC", 1.0)
    (tmp_path / "images" / BASE / "rootfs").mkdir(parents=True)
    spec = SandboxSpec(image_search=(str(tmp_path / "images"),))

    async def main():
        async with Careless(change, store=tmp_path / "store") as provider:
            (result,) = await check_sandbox(provider, spec=spec, base=BASE, only=[name])
        return result

    result = asyncio.run(main())
    assert result.status == "failed", result
