import asyncio
import json
import subprocess
import sys

import pytest
from benchflow_contracts import (
    ContainerOptions,
    RolloutIdentity,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    ServiceHealth,
    ServiceSpec,
    UsageError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_core.owner import current_owner
from benchflow_sandbox_docker import DockerProvider

GET = "python3 -c \"import urllib.request as r; print(r.urlopen('{}', timeout=9).read().decode())\""
SICK = ServiceHealth(test=("CMD", "false"), interval_sec=0.1, retries=2)
HEALTHY = ServiceHealth(
    test=("CMD-SHELL", "test -e /srv/ready"),
    interval_sec=0.2,
    retries=50,
    start_period_sec=1,
    start_interval_sec=0.1,
)

RUNNER = """
import asyncio, sys
from pathlib import Path
from benchflow_contracts import SandboxSpec, ServiceSpec
from benchflow_sandbox_docker import DockerProvider

async def main():
    image = sys.argv[1]
    provider = DockerProvider(image=image, store=Path(sys.argv[2]))
    db = ServiceSpec(name="db", image=image, command=("sleep", "1000"), volumes={"/data": "d"})
    print((await provider.create(SandboxSpec(services=(db,)))).id, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
FAILS = ("sh", "-c", "echo no disk >&2; exit 7")
KNOCK_AT_GATEWAY = """
import errno, socket
from pathlib import Path
route = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
gateways = [bytes.fromhex(r[2])[::-1] for r in route if r[1] == "00000000"]
for raw in gateways:
    with socket.socket() as knock:
        print(errno.errorcode[knock.connect_ex((socket.inet_ntoa(raw), 9))])
"""


async def page_of(box, url):
    """Fetch a page; a server that has just started is asked again."""
    fetch = GET.format(url)
    return (await box.exec(f"until {fetch} 2>/dev/null; do sleep 0.1; done", timeout=60)).stdout


def ours(api, sandbox_id):
    """Everything in the engine that has the sandbox's id in its name."""
    containers = [name for each in api.containers(all=True) for name in each["Names"]]
    networks = [each["Name"] for each in api.networks()]
    volumes = [each["Name"] for each in api.volumes()["Volumes"] or ()]
    return [name for name in (*containers, *networks, *volumes) if sandbox_id in name]


def of_this_process(api):
    everything = (*api.containers(all=True), *api.networks(), *(api.volumes()["Volumes"] or ()))
    labels = [each["Labels"] or {} for each in everything]
    owners = [json.loads(each.get("benchflow.owner", "{}")) for each in labels]
    return [owner for owner in owners if owner.get("id") == current_owner().id]


def test_a_sandbox_and_its_services_reach_each_other_by_name_and_nobody_else(with_box, web):
    async def test(box):
        page = await page_of(box, "http://web:8000/")
        alias = await page_of(box, "http://pages:8000/")
        local = await box.spawn(["python3", "-m", "http.server", "7000", "--directory", "/"])
        back = 1
        async with asyncio.timeout(30):
            while back:
                back = await box.service_exec("web", GET.format("http://main:7000/"))
        await local.aclose()
        outside = [
            await box.exec(f"timeout 5 {GET.format(url)}")
            for url in ("http://192.0.2.7/", "http://example.org/")
        ]
        return page, alias, outside, await box.exec(["python3", "-c", KNOCK_AT_GATEWAY])

    page, alias, outside, knocked = with_box(test, services=[web(networks={"default": ["pages"]})])
    assert "Directory listing" in page
    assert alias == page
    assert not any(result.ok for result in outside)
    # A host that were there would refuse. A newer engine names no gateway at all.
    assert knocked.stdout in {"EHOSTUNREACH\n", "ETIMEDOUT\n", ""}
    assert knocked.ok


def test_a_sandbox_says_by_their_bytes_what_it_and_its_services_were_made_from(
    with_provider, api, image, recipe
):
    made = recipe("RUN touch /made\n")
    db = ServiceSpec(name="db", recipe=made, command=("sleep", "1000"))
    plain = ServiceSpec(name="plain", image=image, command=("sleep", "1000"))

    async def test(provider):
        box = await provider.create(SandboxSpec(image=image, services=(db, plain)))
        alone = await provider.create(SandboxSpec(recipe=made))
        return box.image_digests, alone.image_digests

    beside, alone = with_provider(test)
    told = api.inspect_image(image)
    # A store of an older engine knows no digest of what no registry ever had.
    digest = min(told["RepoDigests"] or [told["Id"]])
    assert beside == {"main": digest, "plain": digest, "db": alone["main"]}
    assert alone["main"] != digest
    assert api.inspect_image(alone["main"])["Config"]["Labels"].keys() >= {"test"}


def test_services_start_in_the_order_of_their_needs(with_box, web):
    seed = web("seed", command=("sh", "-c", "echo seeded > /data/page"), volumes={"/data": "d"})
    server = web(
        command=("sh", "-c", "sleep 0.5; touch ready; exec python3 -m http.server 8000"),
        health=HEALTHY,
        needs={"seed": "completed"},
        volumes={"/srv": "d"},
    )
    late = web("late", needs={"main": "started", "web": "healthy"})

    async def test(box):
        first = await page_of(box, "http://web:8000/page")
        shared = await box.exec("cat /shared/page")
        return first, shared, await box.service_exec("late", "true")

    main = ContainerOptions(needs={"web": "healthy"}, volumes={"/shared": "d"})
    spec = {"services": [late, server, seed], "container": main}
    first, shared, code = with_box(test, **spec)
    assert first == "seeded\n\n"
    assert shared.stdout == "seeded\n"
    assert code == 0


@pytest.mark.parametrize(
    ("broken", "condition", "said"),
    [
        ({"command": FAILS}, "completed", "ended with exit code 7"),
        ({"command": ["no-such-program"]}, "completed", "ended with exit code 127"),
        ({"health": SICK}, "healthy", "is unhealthy"),
        ({}, "healthy", "is running, but must be healthy"),
    ],
)
def test_a_service_that_fails_is_named_and_nothing_is_left(
    with_provider, web, api, broken, condition, said
):
    async def test(provider):
        main = ContainerOptions(needs={"web": condition})
        with pytest.raises(SandboxError, match="'web'") as caught:
            await provider.create(SandboxSpec(services=[web(**broken)], container=main))
        return str(caught.value)

    text = with_provider(test)
    assert said in text
    if said.endswith("7"):
        assert "no disk" in text or "no-such-program" in text
    assert of_this_process(api) == []


def test_everything_of_a_sandbox_with_services_is_gone_after_its_teardown(with_provider, web, api):
    async def test(provider):
        box = await provider.create(
            SandboxSpec(
                services=[web(volumes={"/data": "d"})],
                container=ContainerOptions(volumes={"/shared": "d"}),
            )
        )
        there = ours(api, box.id)
        await box.teardown()
        return there, ours(api, box.id)

    there, after = with_provider(test)
    assert len(there) == 4
    assert after == []


def test_the_services_of_a_killed_runner_are_removed_and_nothing_of_others(image, api, tmp_path):
    command = [sys.executable, "-c", RUNNER, image, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        left = runner.stdout.readline().strip()
        runner.kill()
    there = ours(api, left)
    labels = api.inspect_network(f"benchflow-{left}")["Labels"]
    foreign = api.create_network(f"mine-{left}", labels=labels)["Id"]
    volume = api.create_volume(f"mine-{left}", labels=labels)["Name"]
    try:

        async def reap():
            async with DockerProvider(image=image, store=tmp_path) as provider:
                return [record.id for record in await provider.reap(ReapPolicy())]

        assert left in asyncio.run(reap())
        assert ours(api, left) == [f"mine-{left}"] * 2
    finally:
        api.remove_network(foreign)
        api.remove_volume(volume)
    assert len(there) == 4


def test_a_restore_ends_what_runs_in_the_sandbox_and_leaves_its_services_alone(with_box, web):
    async def test(box):
        assert await box.service_exec("web", "echo kept > /srv/state") == 0
        image = await box.snapshot()
        await box.exec("echo late > late; (sleep 86397 &) >/dev/null 2>&1")
        await box.restore(image)
        state = await page_of(box, "http://web:8000/state")
        return state, (await box.exec("ls; pgrep -f 8639[7]")).stdout

    assert with_box(test, services=[web()]) == ("kept\n\n", "")


def test_a_fork_of_a_sandbox_with_services_is_refused(with_provider, web):
    async def test(provider):
        spec = SandboxSpec(services=[web()])
        box = await provider.create(spec)
        with pytest.raises(SandboxUnsupportedError, match="services"):
            await provider.create(spec, image=await box.snapshot())

    with_provider(test)


def test_another_sandbox_stands_in_for_one_beside_its_services(with_box, web):
    """It has the names and the volumes of the place, and nothing else of who had it."""

    async def test(box):
        await box.exec("echo kept > /shared/state; echo left > /left")
        server = await box.spawn(["python3", "-m", "http.server", "7000", "--directory", "/"])
        image = await box.snapshot()
        spec = SandboxSpec(image="host", env={"GIVEN": "1"}, user="root", workdir="/")
        async with box.replace_main(
            image, spec, identity=RolloutIdentity(purpose="grading")
        ) as other:
            said = (await other.exec("cat /shared/state /left; env")).stdout
            page = await page_of(other, "http://web:8000/")
            deaf = await box_hears(box, "web", "main")
            local = await other.spawn(["python3", "-m", "http.server", "7000", "--directory", "/"])
            async with asyncio.timeout(30):
                while not await box_hears(box, "web", "main"):
                    pass
            await local.aclose()
        async with asyncio.timeout(30):
            while not await box_hears(box, "web", "main"):
                pass
        back = await page_of(box, "http://web:8000/")
        await server.aclose()
        return said, page, deaf, back

    def spec():
        shared = ContainerOptions(volumes={"/shared": "d"})
        return {"services": [web()], "container": shared, "env": {"KEY": "secret"}, "user": "root"}

    said, page, deaf, back = with_box(test, **spec())
    assert said.startswith("kept\nleft\n")
    assert "GIVEN=1" in said
    assert "secret" not in said
    assert "Directory listing" in page
    assert not deaf
    assert back == page


def test_what_volumes_hold_is_among_the_changes_of_a_sandbox(with_box, web):
    async def test(box):
        await box.exec("cd /shared; mkdir d; echo 1 > d/same; echo 1 > d/changed; echo 1 > gone")
        await box.set_baseline()
        await box.exec("cd /shared; ln -s /tests/wanted link; echo 2 > d/changed; rm gone")
        await box.service_exec("web", "mkdir -p /data/deep && touch /data/deep/new")
        async with box.freeze():
            return await box.changed_files()

    shared, beside = ContainerOptions(volumes={"/shared": "d"}), web(volumes={"/data": "d"})
    found = with_box(test, services=[beside], container=shared, user="root", workdir="/")
    assert found.added == ("/shared/deep", "/shared/deep/new", "/shared/link")
    assert (found.changed, found.removed) == (("/shared/d/changed",), ("/shared/gone",))
    assert found.links == {"/shared/link": "/tests/wanted"}


async def box_hears(box, service, name):
    """Ask from a service whether somebody listens in the place of the sandbox."""
    return await box.service_exec(service, GET.format(f"http://{name}:7000/")) == 0


def test_a_sandbox_with_less_access_cannot_replace_main_beside_public_services(with_box, web):
    async def test(box):
        image = await box.snapshot()
        with pytest.raises(SandboxUnsupportedError, match="public"):
            async with box.replace_main(image, SandboxSpec(), identity=RolloutIdentity()):
                pass
        return (await box.exec("echo on")).stdout

    assert with_box(test, services=[web()], network="public") == "on\n"


def test_services_are_kept_apart_by_their_networks(with_box, web, api):
    front = web("front", networks={"front": [], "back": ["shop"]})
    back = web("back", networks={"back": []})
    alone = web("alone", network_of="")
    beside = web("beside", network_of="back", command=("sleep", "1000"))

    async def test(box):
        page = await page_of(box, "http://front:8000/")
        unknown = await box.exec(GET.format("http://back:8000/"))
        there = [
            await box.service_exec(name, GET.format(f"http://{host}:8000/"))
            for name, host in (("front", "back"), ("beside", "localhost"), ("back", "shop"))
        ]
        lone = await box.service_exec("alone", GET.format("http://front:8000/"))
        return page, unknown.ok, there, lone, len(ours(api, box.id))

    page, unknown, there, lone, count = with_box(
        test,
        services=[front, back, alone, beside],
        container=ContainerOptions(networks={"front": []}),
    )
    assert "Directory listing" in page
    assert not unknown
    assert there == [0, 0, 0]
    assert lone != 0
    assert count == 7


def test_an_inner_network_has_no_way_out_where_the_others_have_one(with_box, web, api):
    async def test(box):
        names = [name for name in ours(api, box.id) if not name.startswith("/")]
        return [api.inspect_network(name)["Internal"] for name in sorted(names)]

    services = [web("a", networks={"inside": [], "outside": []})]
    main = ContainerOptions(networks={"outside": []})
    inner = frozenset({"inside"})
    spec = {"network": "public", "services": services, "container": main}
    assert with_box(test, **spec, inner_networks=inner) == [True, False]


def test_the_last_output_of_a_service_is_reported(with_box, web):
    chatty = web(command=("sh", "-c", "exec >&2; echo early; echo late; exec sleep 1000"))

    async def test(box):
        async with asyncio.timeout(30):
            while b"late" not in (whole := await box.service_logs("web")):
                pass
        return whole, await box.service_logs("web", max_bytes=5)

    whole, last = with_box(test, services=[chatty])
    assert whole == b"early\nlate\n"
    assert last == b"late\n"


def test_commands_in_services_tell_their_exit_code_and_end_in_time(with_box, web, tmp_path):
    async def test(box):
        codes = [await box.service_exec("web", text) for text in ("exit 3", "true")]
        who = await box.service_exec("web", ["test", "65534"], user="65534")
        with pytest.raises(SandboxTimeoutError, match="'web'"):
            await box.service_exec("web", "sleep 20", timeout=0.2)
        with pytest.raises(SandboxError, match="running: web"):
            await box.service_exec("db", "true")
        await box.service_exec("web", "mkdir /srv/out; echo 1 > /srv/out/a; ln -s / /srv/link")
        await box.service_download("web", "/srv/out", tmp_path / "out")
        return codes, who

    assert with_box(test, services=[web()]) == ([3, 0], 0)
    assert (tmp_path / "out" / "a").read_text() == "1\n"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"container": {"needs": {"db": "started"}}}, "'main' waits for 'db'"),
        ({"services": ["web", "web"]}, "two services"),
        ({"services": [("web", {}, "main")]}, "cannot use the sandbox's own network"),
        ({"services": [("web", {"main": "completed"})]}, "the end of the sandbox"),
        ({"services": [("a", {"b": "started"}), ("b", {"a": "started"})]}, "wait for each other"),
        (
            {
                "services": [("a", {"main": "started"})],
                "container": {"needs": {"a": "started"}},
            },
            "wait for each other",
        ),
    ],
)
def test_services_that_make_no_sense_together_are_refused(with_provider, web, spec, said):
    given = [(each, {}) if isinstance(each, str) else each for each in spec.get("services", ["a"])]
    services = [
        web(name, needs=needs, network_of=next(iter(other), None)) for name, needs, *other in given
    ]

    async def test(provider):
        with pytest.raises(UsageError, match=said):
            await provider.create(SandboxSpec(**{**spec, "services": services}))

    with_provider(test)


def test_another_provider_refuses_services(web):
    from benchflow_testing.fakes import FakeSandboxProvider  # noqa: PLC0415

    async def test():
        with pytest.raises(SandboxUnsupportedError, match="services"):
            await FakeSandboxProvider().create(SandboxSpec(services=[web()]))

    asyncio.run(test())


def test_the_provider_reports_support_for_services(image):
    async def test():
        async with DockerProvider(image=image) as provider:
            return await provider.capabilities()

    assert asyncio.run(test()).services
