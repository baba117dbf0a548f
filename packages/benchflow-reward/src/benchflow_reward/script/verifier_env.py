"""The environment variables of test.sh: pinned ones and the task's. None is inherited."""

from benchflow_contracts import SandboxSpec, TaskVerifier

from .layout import PINNED_PATH

_PINNED = {
    "PATH": PINNED_PATH,
    "PYTHONSAFEPATH": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/nonexistent",
    "PYTHONNOUSERSITE": "1",
    "PYTEST_ADDOPTS": "-c /dev/null --confcutdir=/tests --rootdir=/tests -p no:cacheprovider",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PIP_CONFIG_FILE": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "LC_ALL": "C.UTF-8",
}

_SHELL_START = frozenset(
    {"BASH_ENV", "ENV", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "CDPATH", "GLOBIGNORE", "HOME"}
)
_STEERING = ("LD_", "PYTHON", "PYTEST_", "BASH_FUNC_", "PIP_", "GIT_", "PERL5", "RUBY", "NODE_")


def pinned_env(verifier: TaskVerifier) -> dict[str, str]:
    """Return the variables of test.sh: pinned values, then those of `[verifier] env`.

    The task's author may widen PATH there; the agent has no say in any of it.
    """
    home = "/root" if verifier.user == "root" else "/nonexistent"
    return {**_PINNED, "HOME": home, **verifier.env}


def without_steering(spec: SandboxSpec) -> SandboxSpec:
    """Return `spec` without the variables that steer shells and interpreters.

    They are dropped and not only overridden, so that no program of the sandbox (the
    shell that runs our commands, say) ever starts with one.
    """
    env = {key: value for key, value in spec.env.items() if not _steers(key)}
    return spec.model_copy(update={"env": env})


def _steers(name: str) -> bool:
    return name in _SHELL_START or name in _PINNED or name.startswith(_STEERING)
