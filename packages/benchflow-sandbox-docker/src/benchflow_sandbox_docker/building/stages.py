"""The stages of a Dockerfile: their images, variables and shells."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile, Instruction
from benchflow_sandbox_core.recipe.scope import Scope

_NONE = ImageConfig()


@dataclass(frozen=True, slots=True)
class BuildStages:
    """Reads the instructions of a Dockerfile in their order."""

    file: Dockerfile
    name: str
    bases: Mapping[str, ImageConfig]
    """The configurations of base images by their names."""
    args: Mapping[str, str]
    """The values of the build's arguments."""

    def scopes(self) -> Iterator[tuple[Instruction, Scope]]:
        """Yield each instruction of a stage with the scope before it.

        Raises:
            TaskError: An instruction is malformed.
        """
        before, scope = Scope.before(self.file.escape, self.args), None
        named: dict[str, Scope] = {}
        for one in self.file.instructions:
            where = f"{self.name}:{one.line}"
            if one.name == "FROM":
                words = before.words(where).split(one.text)
                earlier = named.get(words[0].lower())
                config = self.bases.get(words[0], _NONE)
                scope = earlier.child() if earlier else before.stage(config.env, config.shell)
                named |= {word.lower(): scope for word in words[2:3]}
            elif scope is None:
                before.apply(one, where)
            else:
                yield one, scope
                scope.apply(one, where)

    def images(self, target: str = "") -> list[str]:
        """Return the images that a stage needs, also through other stages.

        Without a stage named `target`, the last stage counts. Stages and `scratch` are not
        images. A name that the arguments before the first FROM do not resolve is skipped.
        """
        parts, found = self._parts(), dict[str, None]()
        start = _earlier(parts, target, len(parts))
        todo = list(range(len(parts)))[-1:] if start is None else [start]
        for number in todo:
            for name in parts[number].sources:
                earlier = _earlier(parts, name, number)
                if earlier is None:
                    found[name] = None
                elif earlier not in todo:
                    todo.append(earlier)
        # A number can only be the number of a stage.
        return [name for name in found if name not in {"scratch", ""} and not name.isdecimal()]

    def _parts(self) -> list["_Part"]:
        before, parts = Scope.before(self.file.escape, self.args), list[_Part]()
        for one in self.file.instructions:
            with suppress(TaskError):
                words = before.words(self.name)
                if one.name == "FROM":
                    base, *others = words.split(one.text)
                    number = str(len(parts))
                    names = {number, *(each.lower() for each in others[1:2])}
                    parts.append(_Part(names, [base]))
                elif parts:
                    parts[-1].sources.extend(words.resolve(each) for each in _sources(one))
                elif one.name == "ARG":
                    before.apply(one, self.name)
        return parts


@dataclass(frozen=True, slots=True)
class _Part:
    names: set[str]
    """Its number and its name in lower case."""
    sources: list[str]


def _earlier(parts: list[_Part], name: str, before: int) -> int | None:
    """Return the last stage of this name before stage number `before`."""
    matching = (n for n in reversed(range(before)) if name.lower() in parts[n].names)
    return next(matching, None)


def _sources(one: Instruction) -> list[str]:
    """Return the images or stages from which COPY or RUN take files."""
    found = [value for key, value in one.flags if key == "from" and one.name == "COPY"]
    for key, value in one.flags:
        if key == "mount" and one.name == "RUN":
            pairs = (part.partition("=") for part in value.split(","))
            found += [text for option, _, text in pairs if option == "from"]
    return found
