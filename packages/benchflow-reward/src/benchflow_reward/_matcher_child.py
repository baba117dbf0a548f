"""The child of `matcher.search`: JSON in on stdin, a list of booleans out."""

import json
import re
import sys


def main() -> None:
    """Search each text and print which ones matched."""
    job = json.load(sys.stdin)
    flags = re.MULTILINE | (re.IGNORECASE if job["ignore_case"] else 0)
    pattern = re.compile(job["pattern"], flags)
    json.dump([pattern.search(text) is not None for text in job["texts"]], sys.stdout)


if __name__ == "__main__":
    main()
