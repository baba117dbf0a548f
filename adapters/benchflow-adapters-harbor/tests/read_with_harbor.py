"""Run by Harbor's Python: print what Harbor itself makes of the tasks below a directory."""

import json
import sys
import warnings
from pathlib import Path

from harbor.mappers.terminal_bench import TerminalBenchMapper
from harbor.models.task.artifacts import convention_source_for_os, with_convention_entry
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
)
from harbor.models.trial.config import AgentConfig as TrialAgentConfig
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig
from harbor.publisher.packager import Packager
from harbor.trial.network_policy import (
    resolve_agent_env_baseline,
    resolve_agent_phase_policy,
    resolve_verifier_env_baseline,
    resolve_verifier_phase_policy,
)


def read(path):
    if not Task.is_valid_dir(path):
        return None
    task = Task(path)
    config = task.config
    return {
        "name": task.name,
        "config": config.model_dump(mode="json"),
        "digest": "sha256:" + Packager.compute_content_hash(path)[0],
        "steps": [step(task, each) for each in config.steps or [None]],
    }


def step(task, cfg):
    config, paths = task.config, task.paths
    baseline = resolve_agent_env_baseline(config, TrialEnvironmentConfig())
    definition = resolve_verifier_environment_definition(config, paths, cfg)
    box = definition.config if definition else config.environment
    grading = baseline
    if definition:
        grading = resolve_verifier_env_baseline(
            config, TrialEnvironmentConfig(), cfg, env_config=definition.config
        )
    script = paths.discovered_test_path_for(box.os)
    if cfg is not None:
        script = paths.discovered_step_test_path_for(cfg.name, box.os) or script
    mode = (
        resolve_task_verifier_mode(config)
        if cfg is None
        else resolve_step_verifier_mode(config, cfg)
    )
    entries = with_convention_entry(
        [*config.artifacts, *(cfg.artifacts if cfg else [])],
        convention_source=convention_source_for_os(config.environment.os),
    )

    def inside(path):
        return path.relative_to(task.task_dir).as_posix()

    agent = resolve_agent_phase_policy(config, TrialAgentConfig(), baseline, cfg)
    verifier = resolve_verifier_phase_policy(config, cfg, baseline=grading)
    return {
        "instruction": task.instruction if cfg is None else task.step_instruction(cfg.name),
        "agent_network": agent.model_dump(mode="json"),
        "verifier_network": verifier.model_dump(mode="json"),
        "mode": mode.value,
        "environment": definition and definition.config.model_dump(mode="json"),
        "directory": definition and inside(definition.directory),
        "tests_in_image": bool(definition and definition.bundled_tests),
        "script": script and inside(script),
        "artifacts": sorted(json.dumps(e.model_dump(mode="json")) for e in entries),
    }


def migrate(path, target):
    result = TerminalBenchMapper().map(path, target)
    return {task.name: migrated(task) for task in map(Task, result.mapped)}


def migrated(task):
    root = Path(task.task_dir)
    folders = [root / name for name in ("environment", "tests", "solution")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {
        "config": task.config.model_dump(mode="json"),
        "instruction": task.instruction,
        "files": {path.relative_to(root).as_posix(): path.read_text() for path in files},
        "programs": sorted(
            path.relative_to(root).as_posix() for path in files if path.stat().st_mode & 0o111
        ),
    }


warnings.simplefilter("ignore")
root = Path(sys.argv[1])
answer = {path.name: read(path) for path in sorted((root / "harbor").iterdir())}
# The mapper tells what it does on standard output.
sys.stdout, told = sys.stderr, sys.stdout
answer["terminal-bench"] = migrate(root / "terminal-bench", root / "migrated")
json.dump(answer, told)
