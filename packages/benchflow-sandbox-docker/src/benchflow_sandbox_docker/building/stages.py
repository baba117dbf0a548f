"""The stages of a Dockerfile: the images that they name, and what holds in them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile, Instruction
from benchflow_sandbox_core.recipe.scope import Scope

_NONE = ImageConfig()


@dataclass(frozen=True, slots=True)
class Stages:
    """Goes through the instructions in their order."""

    file: Dockerfile
    name: str
    bases: Mapping[str, ImageConfig]
    """What is known of images by their names."""
    args: Mapping[str, str]
    """The values of arguments that the build is given."""

    def scopes(self) -> Iterator[tuple[Instruction, Scope]]:
        """Yield each instruction of a stage with what holds before it.

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
                before.take(one, where)
            else:
                yield one, scope
                scope.take(one, where)

    def images(self) -> list[str]:
        """Return the images that it is made from, without stages and `scratch`.

        One whose name is no plain word after the arguments before the first FROM is left out.
        """
        before, found = Scope.before(self.file.escape, self.args), dict[str, None]()
        stages, begun = {"scratch", ""}, False
        for one in self.file.instructions:
            with suppress(TaskError):
                words, alias = before.words(self.name), list[str]()
                named = [words.one(each) for each in _sources(one)]
                if one.name == "FROM":
                    begun = True
                    base, *others = words.split(one.text)
                    named, alias = [base], others[1:2]
                elif one.name == "ARG" and not begun:
                    before.take(one, self.name)
                # A number is a stage.
                images = (each for each in named if not each.isdecimal())
                found |= dict.fromkeys(each for each in images if each.lower() not in stages)
                stages.update(each.lower() for each in alias)
        return list(found)


def _sources(one: Instruction) -> list[str]:
    """Return the images or stages that COPY or RUN take files from."""
    found = [value for key, value in one.flags if key == "from" and one.name == "COPY"]
    for key, value in one.flags:
        if key == "mount" and one.name == "RUN":
            pairs = (part.partition("=") for part in value.split(","))
            found += [text for option, _, text in pairs if option == "from"]
    return found
