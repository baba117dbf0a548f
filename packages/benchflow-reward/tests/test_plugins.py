"""Packages that an agent brought, and whether the tests' pytest would load them."""

import asyncio

import pytest
from benchflow_contracts import SandboxSpec
from benchflow_reward.script.integrity import integrity_report, read_changed_files
from benchflow_reward.script.tamper_rules import TamperRules

PACKAGES = "/usr/local/lib/python3.11/dist-packages"
OFFERS = f"{PACKAGES}/plain-1.0.dist-info/entry_points.txt"
PLUGIN = b"[pytest11]\nplain = plain.hooks\n"
COMMAND = b"[console_scripts]\nplain = plain:main\n"
RUNS_PYTEST = b"python3 -m pytest /tests"


@pytest.fixture
def report(provider):
    """Report on what `write` left, for tests that run pytest by the image's own variables."""

    def make(write, *, before=None, tests=RUNS_PYTEST, pinned=False, expected=()):
        async def main():
            box = await provider.create(SandboxSpec())
            box.files.mkdir(PACKAGES, parents=True)
            if before is not None:
                before(box.files)
            await box.set_baseline()
            write(box.files)
            changes = await read_changed_files(box)
            rules = TamperRules.of(tests, ["/srv"], "/usr/bin", expected, pinned=pinned)
            return await integrity_report(box, changes, rules, user="root")

        return asyncio.run(main())

    return make


def linked_file(files):
    files.put("/srv/offers", PLUGIN)
    files.mkdir(f"{PACKAGES}/plain-1.0.dist-info")
    files.link("/srv/offers", OFFERS)


def linked_directory(files):
    files.put("/srv/plain/entry_points.txt", PLUGIN)
    files.link("/srv/plain", f"{PACKAGES}/plain-1.0.dist-info")


def written(path, data=PLUGIN):
    return path, lambda files: files.put(path, data)


WAYS = {
    "a wheel": written(OFFERS),
    "an egg": written(f"{PACKAGES}/plain.egg-info/entry_points.txt"),
    "other letters": written(f"{PACKAGES}/plain-1.0.DIST-INFO/entry_points.txt"),
    # `python -m pytest` looks there too.
    "where the tests run": written("/srv/plain-1.0.dist-info/entry_points.txt"),
    "too big to be read": written(OFFERS, b"#" * (1 << 20) + b"\n" + PLUGIN),
    "a link": (OFFERS, linked_file),
    "a linked directory": (f"{PACKAGES}/plain-1.0.dist-info", linked_directory),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_package_that_pytest_would_load_is_tampering(report, way):
    path, write = WAYS[way]
    assert report(write)["findings"] == [{"path": path, "change": "added", "grade": "tampered"}]


def test_a_package_that_becomes_a_plugin_is_one(report):
    found = report(
        lambda files: files.put(OFFERS, PLUGIN), before=lambda files: files.put(OFFERS, COMMAND)
    )
    assert found["findings"] == [{"path": OFFERS, "change": "changed", "grade": "tampered"}]


def test_so_many_packages_that_not_all_are_read_count_as_plugins(report):
    def write(files):
        for i in range(70):
            files.put(f"{PACKAGES}/p{i:02}.dist-info/entry_points.txt", COMMAND)

    assert report(write)["count"] == 6


def test_a_package_that_offers_pytest_nothing_is_clean(report):
    assert report(lambda files: files.put(OFFERS, COMMAND))["grade"] == "clean"


def test_a_plugin_that_the_agent_removed_is_loaded_by_nobody(report):
    def remove(files):
        files.remove(OFFERS)

    assert report(remove, before=lambda files: files.put(OFFERS, PLUGIN))["grade"] == "clean"


def test_plugins_are_nothing_to_tests_that_do_not_run_pytest_or_load_none(report):
    def write(files):
        files.put(OFFERS, PLUGIN)

    assert report(write, tests=b"python3 -m unittest")["grade"] == "clean"
    assert report(write, pinned=True)["grade"] == "clean"


@pytest.mark.parametrize("expected", [PACKAGES, f"{PACKAGES}/plain*", OFFERS])
def test_a_plugin_that_is_expected_is_no_tampering(report, expected):
    found = report(lambda files: files.put(OFFERS, PLUGIN), expected=[expected])
    assert (found["grade"], found["count"]) == ("clean", 0)
