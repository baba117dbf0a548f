import pytest
from benchflow_contracts import ReapPolicy, SandboxSpec
from watching import until

DOCKERFILE = """
RUN mkdir -p /data/own && echo first > /data/file && chown 7:7 /data/own
VOLUME ["/data", "/absent/below"]
"""


@pytest.fixture
def spec(recipe, api):
    """An image with volumes. What is made of it goes after."""

    def left():
        """Volumes of images have such names. What a container of others uses is not left."""
        found = api.volumes(filters={"dangling": True})["Volumes"] or ()
        return {each["Name"] for each in found if len(each["Name"]) == 64}

    before = left()
    yield SandboxSpec(recipe=recipe(DOCKERFILE), user="root")
    # Others' may just be made, or about to go.
    until("no more volumes than before", lambda: left() <= before)


def test_writes_to_volumes_are_in_snapshots_forks_and_changes(with_provider, spec):
    async def check(provider):
        box = await provider.create(spec)
        said = await box.exec("cat /data/file; stat -c %u:%g:%a /data/own /absent/below")
        assert said.stdout == "first\n7:7:755\n0:0:755\n"
        await box.set_baseline()
        assert (await box.exec("echo second >> /data/file; echo n > /absent/below/new")).ok
        changes = await box.changed_files()
        assert (changes.added, changes.changed) == (("/absent/below/new",), ("/data/file",))
        image = await box.snapshot()
        assert (await box.exec("echo lost >> /data/file")).ok
        await box.restore(image)
        fork = await provider.create(spec, image=image)
        for each in (box, fork):
            assert (await each.exec("cat /data/file /absent/below/new")).stdout == (
                "first\nsecond\nn\n"
            )
        assert (await fork.exec("echo third > /data/file")).ok
        again = await provider.create(spec, image=await fork.snapshot())
        assert (await again.exec("cat /data/file")).stdout == "third\n"
        assert (await box.exec("cat /data/file")).stdout == "first\nsecond\n"

    with_provider(check)


def test_an_image_with_volumes_is_converted_once_and_pruned(with_provider, spec, api, mark):
    def twins():
        ours = {"label": f"test={mark}"}
        return [each["Id"] for each in api.images(name="benchflow-plain", filters=ours)]

    async def check(provider):
        box = await provider.create(spec)
        (made,) = twins()
        other = await provider.create(spec)
        assert twins() == [made]
        assert (await other.exec("cat /data/file")).stdout == "first\n"
        await box.teardown()
        await other.teardown()
        await provider.reap(ReapPolicy(scope="none", built_images=True))
        assert twins() == []

    with_provider(check)
