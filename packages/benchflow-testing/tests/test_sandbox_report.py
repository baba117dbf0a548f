"""What the kit says that a provider can do."""

import asyncio

from benchflow_contracts import SandboxCapabilities
from benchflow_testing import ABILITIES, SandboxReport, check_sandbox, sandbox_checks
from benchflow_testing.check import CheckResult
from benchflow_testing.fakes import FAKE_WITHOUT_LIVE, FakeSandboxProvider


def results(status="passed", reason="", **others) -> list[CheckResult]:
    """Return a result of every check: `others` maps the name of a check to its status."""
    return [
        CheckResult(
            name=check.name,
            status=others.get(check.name, status),
            reason=reason if others.get(check.name, status) != "passed" else "",
            duration_sec=0,
        )
        for check in sandbox_checks()
    ]


def test_every_check_belongs_to_one_ability():
    names = [check.name for checks in ABILITIES.values() for check in checks]
    assert sorted(names) == sorted(check.name for check in sandbox_checks())
    assert len(set(names)) == len(names)


def test_a_provider_whose_checks_pass_can_do_everything():
    report = SandboxReport("x", results(), {})
    assert {ability.status for ability in report.abilities} == {"yes"}
    assert report.can("grade")


def test_an_ability_whose_first_check_is_skipped_is_missing_with_a_reason():
    why = "capabilities: no freeze and no kill_all"
    report = SandboxReport("x", results(reason=why, a_rollout_is_graded="skipped"), {})
    assert not report.can("grade")
    assert f"         no  grade\n             - {why}\n" in str(report)


def test_a_failed_check_breaks_its_ability():
    report = SandboxReport(
        "x", results(reason="it hangs", a_wrong_answer_earns_nothing="failed"), {}
    )
    assert not report.can("grade")
    assert "broken  grade\n             - a_wrong_answer_earns_nothing: it hangs" in str(report)


def test_remedies_of_the_provider_are_in_the_list():
    assert "note: live: install an engine" in str(
        SandboxReport("x", results(), {"live": "install an engine"})
    )


def test_a_provider_that_cannot_end_processes_does_not_count_as_able_to_grade():
    missing = {"freeze": "none", "kill_all": False, "snapshot_levels": ()}
    lacking = {**dict(FAKE_WITHOUT_LIVE), **missing}
    provider = FakeSandboxProvider(capabilities=SandboxCapabilities.model_validate(lacking))
    report = asyncio.run(check_sandbox(provider, only=["a_rollout_is_graded"]))
    assert [result.status for result in report] == ["skipped"]
    assert not report.can("grade")
    assert "capabilities: no freeze and no kill_all" in str(report)
