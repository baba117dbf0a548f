from functools import partial

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing import check_sandbox


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("criu")
def test_the_provider_keeps_every_promise_of_the_contract(with_provider, tmp_path):
    # Without files of its own it lies over the host's programs.
    (tmp_path / "images/host-programs/rootfs").mkdir(parents=True)
    spec = SandboxSpec(image_search=(str(tmp_path / "images"),))
    results = with_provider(partial(check_sandbox, spec=spec, base="host-programs"))
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    # What is not claimed, and nothing else, is skipped.
    assert {r.reason for r in results if r.status == "skipped"} <= {
        "capabilities: no live snapshots",
        "every level is supported",
        "capabilities: there are live snapshots",
        "capabilities: there are builds",
        "capabilities: no network mode public",
        "capabilities: no services",
        "not claimed: sandboxes of live owners are not reaped",
    }
