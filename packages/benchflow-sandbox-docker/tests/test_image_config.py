import pytest
from benchflow_contracts import RolloutIdentity
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec

OWN = {"user": "", "workdir": "", "entrypoint": "image"}
ENTRY = """#!/bin/sh
echo "$GREETING $(id -un):$(id -gn) $(pwd) $0" > /tmp/entry
exec "$@"
"""


@pytest.fixture
def with_image(with_provider, api, tmp_path):
    """Run an async test against an image with a user, an entrypoint and this configuration."""

    def run(test, script=ENTRY, **config):
        entry = tmp_path / "entry"
        entry.write_text(script)
        entry.chmod(0o755)

        async def main(provider):
            box = await provider.create(SandboxSpec())
            await box.exec("useradd -m -u 4321 svc; install -d -o svc /srv/own", user="root")
            await box.upload(entry, "/entry")
            conf = {"User": "root", "WorkingDir": "/", "Entrypoint": ["/entry"], **config}
            made = await box.container.engine.do(
                "commit", box.container.running.container, conf=conf
            )
            await box.teardown()
            try:
                await test(provider, made["Id"])
            finally:
                await provider.aclose()
                api.remove_image(made["Id"], noprune=True)

        with_provider(main)

    return run


async def said(box, cmd, **options):
    found = await box.exec(cmd, timeout=30, **options)
    assert found.ok, found
    return found.stdout.strip()


def test_a_box_is_the_images_own_and_so_are_its_children(with_image):
    async def check(provider, image):
        spec = SandboxSpec(image=image, env={"GREETING": "hello"}, **OWN)
        box = await provider.create(spec)
        assert (box.spec.user, box.spec.workdir) == ("svc", "/srv/own")
        sealed = await box.snapshot()
        child = await provider.create(spec, image=sealed)
        await said(box, "rm /tmp/entry")
        await box.restore(sealed)
        for each in (box, child):
            assert await said(each, "id -un; pwd; echo $FROM") == "svc\n/srv/own\nimage"
            assert await said(each, "cat /tmp/entry") == "hello svc:users /srv/own /entry"
            assert each.spec == box.spec
            # Its arguments, as Harbor gives them.
            await said(each, ["pgrep", "-f", "sleep infinity"], user="root")
        # What is made of it with another user keeps what the image says.
        plain = await provider.create(SandboxSpec(), image=sealed)
        assert await said(plain, "id -un; pwd") == "agent\n/workspace"
        again = await provider.create(spec, image=await plain.snapshot())
        assert (again.spec.user, again.spec.workdir) == ("svc", "/srv/own")

    with_image(check, User="svc", WorkingDir="/srv/own", Env=["FROM=image"])


@pytest.mark.parametrize(
    ("user", "expected"),
    [("4321", "4321 100"), ("4321:7", "4321 7"), ("999", "999 0"), ("999:88", "999 88")],
)
def test_a_user_may_be_a_number_with_a_group(with_image, user, expected):
    async def check(provider, image):
        own = await provider.create(SandboxSpec(image=image, user="", workdir=""))
        given = await provider.create(SandboxSpec(image=image, user=user, workdir="/made"))
        for box in (own, given):
            assert await said(box, "echo $(id -u) $(id -g)") == expected
        assert await said(given, "touch mine; stat -c '%u' mine") == expected.split()[0]

    with_image(check, User=user)


def test_an_image_without_a_user_runs_as_root(with_provider):
    async def check(provider):
        box = await provider.create(SandboxSpec(**OWN))
        assert (box.spec.user, box.spec.workdir) == ("root", "/")
        assert await said(box, "id -u; pwd") == "0\n/"

    with_provider(check)


def test_an_entrypoint_that_ends_at_once_is_an_error_with_its_last_words(with_image):
    async def check(provider, image):
        with pytest.raises(SandboxError, match=r"'/entry sh -c sleep infinity' ended.* 3: .*no db"):
            await provider.create(
                SandboxSpec(image=image, **OWN), identity=RolloutIdentity(other={"image": image})
            )
        # One that did not start is gone.
        assert [
            each async for each in provider.sandboxes() if each.identity.other.get("image")
        ] == []
        # Without it the image is as good as any.
        box = await provider.create(SandboxSpec(image=image))
        assert await said(box, "echo on") == "on"

    with_image(check, script="#!/bin/sh\necho no db >&2\nexit 3\n")


def test_an_entrypoint_that_never_runs_its_arguments_runs_on_and_may_print(with_image):
    script = "#!/bin/sh\nwhile :; do head -c 100000 /dev/zero; echo . >> /tmp/rounds; done\n"

    async def check(provider, image):
        box = await provider.create(SandboxSpec(image=image, **OWN))
        # More rounds than all pipes and our memory of them hold.
        await said(box, "until [ $(wc -l < /tmp/rounds) -gt 30 ]; do sleep 0.05; done")

    with_image(check, script=script)


def test_a_user_that_the_image_names_and_does_not_have_is_not_made_up(with_image):
    async def check(provider, image):
        with pytest.raises(SandboxError, match="no user 'ghost'"):
            await provider.create(SandboxSpec(image=image, user=""))

    with_image(check, User="ghost")
