# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 whose tasks lie: no valid rewards, and names that are paths."""

import verifiers.v1 as vf

KINDS = ("honest", "nan", "infinite", "raises", "words", "ends", "path", "long")


class LieData(vf.TaskData):
    kind: str


class LieTask(vf.Task[LieData]):
    @vf.reward
    async def lie(self, trace: vf.Trace) -> float:
        match self.data.kind:
            case "nan":
                return float("nan")
            case "infinite":
                return float("inf")
            case "raises":
                raise ValueError("a defect of the reward function")
            case "words":
                return "one"
            case "ends":
                raise SystemExit(3)
        return 0.5


class LieTaskset(vf.Taskset[LieTask, vf.TasksetConfig]):
    def load(self):
        for kind in KINDS:
            ident = "../../../etc/passwd" if kind == "path" else kind
            prompt = "x" * 3_000_000 if kind == "long" else "Answer."
            data = LieData(id=ident, name=ident, kind=kind, prompt=prompt)
            yield LieTask(data, self.config.task)


__all__ = ["LieTaskset"]
