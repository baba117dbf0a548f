"""Prices and rates as data: what a rollout costs, and what a wrong file says."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts.errors import CapacityError, UsageError
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.limits import HasCosts, ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import (
    TERMS_VARIABLE,
    BoxSize,
    CloudTerms,
    Prices,
    Rate,
    RateLimiter,
    load_terms,
)
from benchflow_sandbox_remote.cost_meter import CostMeter
from hypothesis import given
from hypothesis import strategies as st

PRICES = Prices(vcpu_hour=0.0504, memory_gib_hour=0.0162, default=BoxSize(vcpus=8, memory_mb=4096))
TERMS = CloudTerms(date="2026-11-28", source="a test", prices=PRICES)


def test_the_price_of_a_size_is_the_sum_of_its_parts():
    # E2B's page about billing has this example: 0.468 US dollars an hour.
    assert PRICES.per_second(PRICES.default) * 3600 == pytest.approx(0.468)
    free = Prices(vcpu_hour=0, memory_gib_hour=0, disk_gib_hour=0.36, default=PRICES.default)
    assert free.per_second(BoxSize(vcpus=1, memory_mb=1, disk_mb=10240)) == pytest.approx(0.001)


def test_limits_that_the_cloud_does_not_obey_do_not_change_the_price():
    limits = ResourceLimits(cpus=2, memory_mb=1024)
    assert PRICES.size_of(limits, ()) == PRICES.default
    assert PRICES.size_of(limits, {"cpu"}) == BoxSize(vcpus=2, memory_mb=4096)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["start", "stop"]), st.integers(0, 100)),
        max_size=30,
    )
)
def test_the_cost_is_the_time_of_all_sandboxes_whatever_their_order(steps):
    now, running, seconds = 0.0, {}, 0.0
    meter = CostMeter(PRICES, lambda: now)
    for sandbox, what, pause in steps:
        if what == "start" and sandbox not in running:
            meter.start(str(sandbox), "r", PRICES.default)
            running[sandbox] = now
        elif what == "stop":
            meter.stop(str(sandbox))
            seconds += now - running.pop(sandbox, now)
        now += pause
    seconds += sum(now - since for since in running.values())
    assert meter.cost_usd("r") == pytest.approx(seconds * 0.468 / 3600)
    assert meter.cost_usd("another") == 0


def test_a_provider_counts_the_sandboxes_of_each_rollout_until_they_are_deleted(with_provider):
    async def test(provider):
        now = 0.0
        provider._costs = CostMeter(PRICES, lambda: now)
        identity = RolloutIdentity(rollout="r")
        first = await provider.create(SandboxSpec(), identity=identity)
        now += 3600
        second = await provider.create(SandboxSpec(), identity=identity)
        now += 3600
        await first.teardown()
        await first.teardown()
        now += 3600
        assert isinstance(provider, HasCosts)
        assert provider.cost_usd("r") == pytest.approx(4 * 0.468)
        await second.teardown()
        now += 3600
        assert provider.cost_usd("r") == pytest.approx(4 * 0.468)
        return provider.cost_usd("another")

    assert with_provider(test, terms=TERMS) == 0


def test_the_cost_is_unknown_without_prices(with_provider):
    async def test(provider):
        await provider.create(SandboxSpec(), identity=RolloutIdentity(rollout="r"))
        return provider.cost_usd("r")

    assert with_provider(test) is None


def test_a_storm_of_429_makes_every_process_of_the_account_wait(with_provider, tmp_path):
    async def test(provider):
        clock = Clock()
        path = tmp_path / "account.json"
        rate = Rate(per_second=1)
        provider._limiter = RateLimiter(path, rate, clock=clock, sleep=clock.sleep)
        full = CapacityError("429", retry_after=40)
        provider.cloud.failures = [(full, None)] * 3
        await provider.create(SandboxSpec())
        assert len(provider.cloud.made) == 1
        assert 1120 <= clock.now <= 1140
        clock.now = 1000.0
        other = RateLimiter(path, rate, clock=clock, max_wait=500)
        assert other.reserve() >= 1040

    with_provider(test, terms=TERMS)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)


FILE = """
date = 2026-11-28
source = "a contract"
creates = { per_second = 5 }
"""


def test_a_user_may_have_other_terms_than_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv(TERMS_VARIABLE, str(tmp_path))
    (tmp_path / "cloud.toml").write_text(FILE)
    terms = load_terms("cloud", "benchflow_sandbox_remote")
    assert (terms.creates, terms.prices) == (Rate(per_second=5), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "date =",
        FILE.replace("5", "0"),
        FILE.replace("5", "nan"),
        FILE + "speed = 1",
        FILE + "x" * (1 << 16),
    ],
)
def test_a_wrong_file_of_terms_is_refused_by_its_name(tmp_path, monkeypatch, text):
    monkeypatch.setenv(TERMS_VARIABLE, str(tmp_path))
    (tmp_path / "cloud.toml").write_text(text)
    with pytest.raises(UsageError, match=str(Path(tmp_path) / "cloud.toml")):
        load_terms("cloud", "benchflow_sandbox_remote")
