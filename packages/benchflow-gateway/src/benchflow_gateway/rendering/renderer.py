"""The renderer of a model family over the tokenizer of a model."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import UsageError

from .conversations import PromptRenderer

_INSTALL: Final = "install benchflow[rendering]"


class JsonTokenizer:
    """A `tokenizer.json` of Hugging Face as the tokenizer of a renderer."""

    def __init__(self, path: Path, name: str, eos_token: str | None = None) -> None:
        """Read the tokenizer at `path`.

        Raises:
            UsageError: The file is missing or is not a tokenizer.
        """
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError("the package 'tokenizers' is missing", hint=_INSTALL) from error
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare exceptions
            raise UsageError(f"{path} is not a tokenizer: {error}", hint=_FILE_HINT) from error
        self.name_or_path = name
        self.unk_token_id: int | None = None
        self.eos_token_id = None if eos_token is None else self.convert_tokens_to_ids(eos_token)

    def encode(self, text: str, *_: Any, add_special_tokens: bool = False, **__: Any) -> list[int]:  # noqa: ANN401
        """Return the token ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self,
        token_ids: int | Sequence[int],
        *_: Any,  # noqa: ANN401 - as the renderers call it
        skip_special_tokens: bool = False,
        **__: Any,  # noqa: ANN401
    ) -> str:
        """Return the text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:  # noqa: ANN401 - one or a list
        """Return the id of a token, or those of a list; `None` for one that does not exist."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


_FILE_HINT: Final = "name the tokenizer.json of the model, or its directory"


def renderer_names() -> list[str]:
    """Return the model families that can be rendered.

    Raises:
        UsageError: The package is not installed.
    """
    return sorted(_configs())


def load_renderer(family: str, tokenizer: Path, *, thinking: bool | None = None) -> PromptRenderer:
    """Return the renderer of a model family, such as `qwen3`, over a `tokenizer.json`.

    `thinking` sets the option `enable_thinking`, if the family has it.

    Raises:
        UsageError: The family or the file does not exist, or they do not belong together.
    """
    configs = _configs()
    if family not in configs:
        raise UsageError(
            f"the package 'renderers' has no family {family!r}",
            hint=f"families: {', '.join(sorted(configs))}",
        )
    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not path.is_file():
        raise UsageError(f"{path} does not exist", hint=_FILE_HINT)
    options: dict[str, Any] = {}
    if thinking is not None:
        options["enable_thinking"] = thinking
    try:
        config = configs[family](**options)
        package = import_module("renderers")
        renderer: PromptRenderer = package.create_renderer(JsonTokenizer(path, family), config)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"family {family!r} cannot use the tokenizer {path}: {error}",
            hint="give the tokenizer of a model of this family",
        ) from error
    return renderer


def _configs() -> dict[str, Any]:
    try:
        # The package has no types.
        configs = import_module("renderers.configs")
    except ImportError as error:
        raise UsageError("the package 'renderers' is missing", hint=_INSTALL) from error
    found: dict[str, Any] = {}
    for each in vars(configs).values():
        fields = getattr(each, "model_fields", {})
        name = fields["name"].default if "name" in fields else None
        # Templates of Jinja cannot keep sampled tokens, and `auto` needs the network.
        if isinstance(name, str) and name not in ("auto", "default", "custom"):
            found[name] = each
    return found
