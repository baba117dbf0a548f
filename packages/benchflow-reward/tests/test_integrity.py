import asyncio

import pytest
from benchflow_contracts import ExecResult, SandboxSpec
from benchflow_reward.script.integrity import report_from_listings
from benchflow_reward.script.tamper_rules import TamperRules

RULES = TamperRules.of(b"python3 /tests/check.py", ["/workspace"], "/usr/local/bin:/usr/bin:/bin")

SYSTEM = "/bin/sh -c set -u\nshown"
STEERING = "/bin/sh -c set -u\nfor d"
DIGESTS = "/bin/sh -c xargs"


def done(stdout):
    return ExecResult(exit_code=0, stdout=stdout, stderr="", duration_sec=0)


def listing(*entries):
    records = [
        f"f\t{mode}\t0:0\t{size}\t{time}\t{time}\t\t{path}\0" for path, mode, size, time in entries
    ]
    return "".join(records) + "\n"


BASE = [("/usr/bin/python3", "755", "100", "1.0"), ("/etc/nsswitch.conf", "644", "50", "1.0")]


@pytest.fixture
def report(provider):
    """Report on a twin and a pristine box with these listings and digests."""

    def make(system, steering=(), pristine_steering=(), digests=("", "")):
        async def main():
            twin = await provider.create(SandboxSpec())
            pristine = await provider.create(SandboxSpec())
            for box, base, start_up, digest in (
                (twin, system, steering, digests[0]),
                (pristine, BASE, pristine_steering, digests[1]),
            ):
                box.on(SYSTEM, lambda call, base=base: done(listing(*base)))
                box.on(STEERING, lambda call, found=start_up: done(listing(*found)))
                box.on(DIGESTS, lambda call, text=digest: done(text + "\n"))
            return await report_from_listings(twin, pristine, RULES, user="root")

        return asyncio.run(main())

    return make


def test_an_untouched_twin_is_clean(report):
    assert report(BASE) == {"grade": "clean", "findings": [], "count": 0, "by": "twin"}


@pytest.mark.parametrize(
    ("system", "path", "change"),
    [
        ([*BASE, ("/tests/conftest.py", "644", "1", "2.0")], "/tests/conftest.py", "added"),
        (BASE[1:], "/usr/bin/python3", "removed"),
        ([("/usr/bin/python3", "755", "101", "2.0"), BASE[1]], "/usr/bin/python3", "changed"),
        ([("/usr/bin/python3", "4755", "100", "1.0"), BASE[1]], "/usr/bin/python3", "changed"),
    ],
)
def test_a_change_of_the_system_is_tampering(report, system, path, change):
    found = report(system)
    assert found["grade"] == "tampered"
    assert found["findings"] == [{"path": path, "change": change, "grade": "tampered"}]


def test_a_touched_file_of_one_size_is_compared_by_content(report):
    touched = [BASE[0], ("/etc/nsswitch.conf", "644", "50", "9.0")]
    same = ("aa  /etc/nsswitch.conf\0", "aa  /etc/nsswitch.conf\0")
    other = ("bb  /etc/nsswitch.conf\0", "aa  /etc/nsswitch.conf\0")
    assert report(touched, digests=same)["grade"] == "clean"
    assert report(touched, digests=other)["grade"] == "tampered"


def test_what_a_provider_makes_per_box_is_no_change(report):
    assert report([*BASE, ("/etc/hostname", "644", "9", "5.0")])["grade"] == "clean"


@pytest.mark.parametrize("name", ["conftest.py", "json.py", "x.pth", "repo/.git/hooks/pre-commit"])
def test_new_start_up_files_of_the_agent_are_suspicious(report, name):
    found = report(BASE, steering=[(f"/workspace/{name}", "644", "1", "2.0")])
    assert found["grade"] == "suspicious"
    assert found["count"] == 1


def test_ordinary_files_of_the_agent_are_not(report):
    assert report(BASE, steering=[("/workspace/main.py", "644", "1", "2.0")])["grade"] == "clean"


def test_start_up_files_that_the_task_brings_are_not(report):
    brought = [("/workspace/conftest.py", "644", "1", "1.0")]
    assert report(BASE, steering=brought, pristine_steering=brought)["grade"] == "clean"


def test_many_findings_are_counted_and_cut(report):
    found = report([*BASE, *((f"/tests/x{i}", "755", "1", "2.0") for i in range(80))])
    assert (found["count"], len(found["findings"])) == (80, 50)


def test_a_listing_that_fails_vouches_for_nothing(provider):
    async def main():
        provider.on(
            SYSTEM, lambda call: ExecResult(exit_code=1, stdout="", stderr="", duration_sec=0)
        )
        boxes = [await provider.create(SandboxSpec()) for _ in range(2)]
        return await report_from_listings(*boxes, RULES, user="root")

    found = asyncio.run(main())
    assert found["grade"] == "tampered"
    assert "not complete" in found["error"]
