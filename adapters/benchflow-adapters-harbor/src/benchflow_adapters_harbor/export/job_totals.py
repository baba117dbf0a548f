"""The statistics of a Harbor job.

Source of the format: harbor 0.24.0, `JobResult` and `JobStats`.
"""

from statistics import fmean
from typing import Any

_COUNTED = ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")


class JobTotals:
    """Sum up trials one at a time.

    The counts are those of Harbor, except `metrics`. A trial without a score counts in
    `n_errors` and in no mean; Harbor counts it as 0.
    """

    def __init__(self) -> None:
        self._trials = 0
        self._errored = 0
        self._cancelled = 0
        self._evals: dict[str, dict[str, Any]] = {}
        self._spent: dict[str, Any] = {}
        self._times: list[str] = []

    def add(self, trial: dict[str, Any]) -> None:
        """Count a `result.json`."""
        self._trials += 1
        self._times += [trial[key] for key in ("started_at", "finished_at") if key in trial]
        entry = self._evals.setdefault(_key(trial), _empty())
        verifier_result = trial["verifier_result"]
        if verifier_result is not None:
            entry["n_trials"] += 1
            for key, value in verifier_result["rewards"].items():
                named = entry["reward_stats"].setdefault(key, {})
                named.setdefault(str(float(value)), []).append(trial["trial_name"])
        failed = trial["exception_info"]
        if failed is not None:
            kind = failed["exception_type"]
            entry["n_errors"] += 1
            entry["exception_stats"].setdefault(kind, []).append(trial["trial_name"])
            self._errored += 1
            self._cancelled += kind == "CancelledError"
        for key in _COUNTED:
            amount = trial["agent_result"].get(key)
            if amount is not None:
                self._spent[key] = self._spent.get(key, 0) + amount

    def result(self, job_id: str) -> dict[str, Any]:
        """Return `result.json` of the job."""
        # ISO 8601 in one time zone sorts as text.
        times = sorted(self._times) or ["1970-01-01T00:00:00+00:00"]
        evals = {key: {**entry, "metrics": _means(entry)} for key, entry in self._evals.items()}
        return {
            "id": job_id,
            "started_at": times[0],
            "updated_at": times[-1],
            "finished_at": times[-1],
            "n_total_trials": self._trials,
            "stats": {
                "n_completed_trials": self._trials,
                "n_errored_trials": self._errored,
                "n_cancelled_trials": self._cancelled,
                "evals": evals,
                **self._spent,
            },
        }


def _empty() -> dict[str, Any]:
    return {"n_trials": 0, "n_errors": 0, "reward_stats": {}, "exception_stats": {}}


def _key(trial: dict[str, Any]) -> str:
    info = trial["agent_info"]
    model = info.get("model_info", {}).get("name")
    parts = [info["name"], *([model] if model else []), trial["source"] or "adhoc"]
    return "__".join(parts)


def _means(entry: dict[str, Any]) -> list[dict[str, float]]:
    stats: dict[str, dict[str, list[str]]] = entry["reward_stats"]
    means = {
        key: fmean([float(value) for value, names in values.items() for _ in names])
        for key, values in stats.items()
    }
    if not means:
        return []
    # A single mean has the name `mean`; several means have the names of their rewards.
    return [{"mean": next(iter(means.values()))} if len(means) == 1 else means]
