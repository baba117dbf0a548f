"""The rate of calls to an account: counted permits of real processes, and clocks of the test."""

import asyncio
import subprocess
import sys

import pytest
from benchflow_contracts.errors import CapacityError
from benchflow_sandbox_remote import Rate, RateLimiter, account_file, retry_after

RATE = Rate(per_second=5, burst=3)
TAKE = """
import sys
from pathlib import Path
from benchflow_sandbox_remote import Rate, RateLimiter
limiter = RateLimiter(Path(sys.argv[1]), Rate(per_second=5, burst=3), clock=lambda: 1000.0)
print(*(limiter.reserve() for _ in range(40)))
"""


class Clock:
    def __init__(self, now=1000.0):
        self.now = now
        self.on_sleep = None

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        if self.on_sleep is not None:
            self.on_sleep()


@pytest.fixture
def limiter(tmp_path):
    def make(clock, rate=RATE, **options):
        path = tmp_path / "account.json"
        return RateLimiter(path, rate, clock=clock, sleep=clock.sleep, **options)

    return make


def test_processes_of_one_account_share_its_permits(tmp_path):
    command = [sys.executable, "-c", TAKE, str(tmp_path / "account.json")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    taken = sorted(float(word) for each in running for word in each.communicate()[0].split())
    # At one moment of the clock: the burst, and then one permit each 0.2 s, none twice.
    assert len(taken) == 160
    expected = [1000.0] * 3 + [1000.0 + 0.2 * number for number in range(1, 158)]
    assert taken == pytest.approx(expected)


def test_permits_come_back_with_time(limiter):
    clock = Clock()
    limited = limiter(clock)

    async def take(count):
        for _ in range(count):
            await limited.acquire()

    asyncio.run(take(5))
    assert clock.now == pytest.approx(1000.4)
    clock.now += 100
    asyncio.run(take(3))
    assert clock.now == pytest.approx(1100.4)
    asyncio.run(take(1))
    assert clock.now == pytest.approx(1100.6)


def test_a_retry_after_stops_every_process_and_leaves_no_burst(limiter):
    clock = Clock()
    first, second = limiter(clock), limiter(clock)
    first.pause(10)
    starts = [second.reserve() for _ in range(3)]
    assert 1010 <= starts[0] <= 1011
    assert [later - starts[0] for later in starts[1:]] == pytest.approx([0.2, 0.4])


def test_a_permit_that_waits_while_the_account_is_paused_waits_again(limiter):
    clock = Clock()
    limited = limiter(clock, Rate(per_second=1))

    def pause():
        clock.on_sleep = None
        limiter(clock).pause(5)

    limited.reserve()
    clock.on_sleep = pause
    asyncio.run(limited.acquire())
    assert clock.now >= 1006


def test_without_a_rate_only_a_retry_after_waits(limiter):
    clock = Clock()
    limited = limiter(clock, None)
    assert [limited.reserve() for _ in range(50)] == [1000.0] * 50
    limited.pause(3)
    assert 1003 <= limited.reserve() <= 1003.3


def test_a_wait_over_the_limit_takes_no_permit(limiter):
    clock = Clock()
    limited = limiter(clock, Rate(per_second=0.01), max_wait=150)
    assert [limited.reserve(), limited.reserve()] == [1000.0, 1100.0]
    for _ in range(3):
        with pytest.raises(CapacityError, match="allowed in 200 s") as error:
            limited.reserve()
        assert error.value.retry_after == pytest.approx(50)


@pytest.mark.parametrize("content", ["", "{", '{"boot": "another", "full_at": 1e12}', "[1]"])
def test_a_state_of_another_boot_or_a_broken_one_is_a_full_bucket(tmp_path, limiter, content):
    (tmp_path / "account.json").write_text(content)
    assert limiter(Clock()).reserve() == 1000.0


def test_the_name_of_the_file_does_not_show_the_key():
    paths = {account_file("e2b", "secret"), account_file("e2b", "other"), account_file("x", "")}
    assert len(paths) == 3
    assert not any("secret" in str(path) for path in paths)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "7", "Retry-After-Sandbox-Create": "30"}, 30),
        ({"Retry-After": "99999999"}, 900),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        (
            {
                # The clock of the cloud is years behind.
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
                "Retry-After": "Wed, 21 Oct 2015 07:28:09 GMT",
            },
            9,
        ),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:09 GMT"}, 0),
    ],
)
def test_the_pause_that_a_cloud_asks_for_is_read_from_its_headers(headers, seconds):
    assert retry_after(headers) == seconds
