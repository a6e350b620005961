"""Chat templates: untrusted Jinja, rendered in a sandbox to what transformers makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.errors import ArtifactError, RequestError

Message = Mapping[str, Any]
"""`role` and `content`; with tools, what else templates know of."""

_MOST_CHARACTERS = 8 << 20
_MOST_REPEATED = 1 << 20
_MOST_BITS = 4096
_FILES = ("tokenizer_config.json", "chat_template.jinja")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens it may name."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    @classmethod
    def of_artifact(cls, artifact: Path) -> ChatTemplate:
        """The template among an artifact's tokenizer files; raises as `of_files`."""
        folder = artifact / "tokenizer"
        files = {n: (folder / n).read_bytes() for n in _FILES if (folder / n).is_file()}
        return cls.of_files(files, str(folder))

    @classmethod
    def of_files(cls, files: Mapping[str, bytes], where: str) -> ChatTemplate:
        """The template among the tokenizer files of a model, by name.

        Raises RequestError (SPECC-E0620) without one, ArtifactError (SPECC-E0502) for a damaged file.
        """
        config = _read_config(files.get("tokenizer_config.json", b"{}"), where)
        tokens = {n: _token_text(config.get(n)) for n in _SPECIAL_TOKENS}
        own = files.get("chat_template.jinja")
        source = _default(config.get("chat_template")) if own is None else _decoded(own, where)
        if source is None:
            raise RequestError(
                "SPECC-E0620", "the model came without a chat template", where=where,
                expected="chat_template.jinja, or chat_template in tokenizer_config.json",
                cure="continue plain text with: specc run ART --prompt TEXT",
            )  # fmt: skip
        return cls(source, {n: t for n, t in tokens.items() if t is not None}, where)

    def takes(self, name: str) -> bool:
        """Whether it reads the variable `name`: `tools`, say. Raises RequestError (SPECC-E0107) if it is broken."""
        environment = _environment()
        from jinja2 import meta

        with self._refusals():
            return name in meta.find_undeclared_variables(environment.parse(self.source))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """All that it names: variables, attributes, and texts, as keys are. Raises as `takes`."""
        environment = _environment()
        from jinja2 import nodes

        with self._refusals():
            tree = environment.parse(self.source)
        found = {node.name for node in tree.find_all(nodes.Name)}
        found |= {node.attr for node in tree.find_all(nodes.Getattr)}
        texts = (node.value for node in tree.find_all(nodes.Const))
        return frozenset(found.union(text for text in texts if isinstance(text, str)))

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:  # fmt: skip
        """The conversation as the model was trained to read it."""
        from jinja2.exceptions import SecurityError

        pieces: list[str] = []
        length = 0
        with self._refusals():
            context = {
                "messages": [dict(m) for m in messages], "tools": tools, "documents": None,
                "add_generation_prompt": add_generation_prompt, **self.tokens,
            }  # fmt: skip
            for piece in self._compiled.generate(context):
                pieces.append(piece)
                length += len(piece)
                if length > _MOST_CHARACTERS:
                    raise SecurityError(f"more than {_MOST_CHARACTERS} characters")
        return "".join(pieces)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What a template may raise, as RequestError (SPECC-E0107)."""
        from jinja2.exceptions import TemplateError

        try:
            yield
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
                AttributeError, RecursionError) as error:  # fmt: skip
            raise RequestError(
                "SPECC-E0107", "the chat template refused the conversation", where=self.where,
                found=str(error) or type(error).__name__,
                cure="leave --system out, or continue plain text with: specc run ART --prompt TEXT",
            ) from error  # fmt: skip

    @cached_property
    def _compiled(self) -> Any:
        return _environment().from_string(self.source)


def _environment() -> Any:
    """Jinja as transformers sets it up; what a template can reach is data and a few functions."""
    try:
        import jinja2.ext
        from jinja2 import nodes
        from jinja2.exceptions import SecurityError, TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise RequestError(
            "SPECC-E0621", "chat templates need jinja2", cure="pip install 'jinja2>=3.1.6'"
        ) from error

    class Bounded(ImmutableSandboxedEnvironment):
        """Nothing larger than a template can need: the sandbox alone lets 'a' * 10**11 through."""

        intercepted_binops = frozenset(["*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            del context
            whole = isinstance(left, int) and isinstance(right, int)
            if operator == "**" and whole and left.bit_length() * right > _MOST_BITS:
                raise SecurityError("a power too large")
            if operator == "*":
                for factor, other in ((left, right), (right, left)):
                    sized = isinstance(factor, (str, list, tuple)) and isinstance(other, int)
                    if sized and len(factor) * other > _MOST_REPEATED:
                        raise SecurityError("a repetition too long")
            if operator == "%" and isinstance(left, str):
                raise SecurityError("formatting with %")
            return self.binop_table[operator](left, right)

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what is trained on; rendering passes it through."""

        tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

        def _pass(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    environment = Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(str(form)[:200])


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(f"{where}/chat_template.jinja", str(error)) from error


def _damaged(where: str, found: str) -> ArtifactError:
    return ArtifactError(
        "SPECC-E0502", "a tokenizer file is damaged", where=where, found=found,
        cure="copy the artifact again",
    )  # fmt: skip


def _read_config(content: bytes, where: str) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"{where}/tokenizer_config.json", str(error)) from error
    return config if isinstance(config, dict) else {}


def _default(entry: object) -> str | None:
    """The template of a configuration: a text, or the one called `default` of several, as transformers takes it."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = {e.get("name"): e.get("template") for e in entry if isinstance(e, dict)}
        text = named.get("default")
        return text if isinstance(text, str) else None
    return None


def _token_text(entry: object) -> str | None:
    """A special token is written as a text, or as an object with `content`."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None
