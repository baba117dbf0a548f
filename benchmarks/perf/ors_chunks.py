"""Does a published ORS client lose a character at any of 10^6 chunk boundaries of our streams?

Both clients strip the white space at the start of an event's data. The texts are mostly white
space and characters that JSON escapes, in chunks of 1 to 11 characters.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import judge_package  # noqa: E402
from ors_streams import PEERS, random_streams  # noqa: E402
from report import emit  # noqa: E402

BOUNDARIES = 1_000_000
SEED = 7


def read_by(name: str) -> dict[str, int]:
    """Return the characters that the client `name` was sent, and those that differ."""
    python = judge_package.install_once(PEERS[name])
    driver = SUPPORT / "ors_peers" / "read_streams.py"
    with subprocess.Popen(
        [python, driver, name, str(SEED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        for line in random_streams(BOUNDARIES, SEED):
            process.stdin.write(line)
        process.stdin.close()
        report: dict[str, int] = json.loads(process.stdout.read())
    return report


def main() -> None:
    """Ask both clients at the same time."""
    with ThreadPoolExecutor() as pool:
        reports = dict(zip(PEERS, pool.map(read_by, PEERS), strict=True))
    for name, report in reports.items():
        lost = [float(report["lost"])]
        unit = f"lost characters at {BOUNDARIES} boundaries"
        emit(f"ors_chunks_{name}", lost, unit=unit, characters=report["characters"], limit=0)
    if any(report["lost"] for report in reports.values()):
        raise SystemExit("a client lost characters")


if __name__ == "__main__":
    main()
