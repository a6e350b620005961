"""What a request may say. What the engine cannot do is refused by name, never ignored."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from specc.errors import RequestError
from specc.grammar import KINDS
from specc.runtime import ADAPTIVE, Option

_INT64 = 1 << 63

MOST_LOGPROBS = 20
"""As OpenAI draws the line."""

Count = Annotated[int, Field(ge=0, le=_INT64 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (), "best_of": (1,), "function_call": (), "functions": (), "length_penalty": (1,),
    "modalities": (["text"],), "parallel_tool_calls": (True,), "prediction": (),
    "reasoning_effort": (), "service_tier": ("auto", "default"),
    "store": (False,), "suffix": (), "use_beam_search": (False,), "verbosity": (), "web_search_options": (),
}  # fmt: skip
"""What others can do and this engine cannot, with the values that ask for nothing."""

_PLAIN: dict[str, float] = {
    "frequency_penalty": 0, "min_p": 0, "min_tokens": 0, "presence_penalty": 0, "repetition_penalty": 1,
    "top_p": 1,
}  # fmt: skip
"""Options of the engine under their own names, with the values that change nothing."""

_WITHOUT_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "user")
"""For the operator of a service, not for the model: taken, and nothing is done with them."""


_E = TypeVar("_E")
Several = Annotated[list[_E], Field(fail_fast=True)]
"""A list of which the first complaint is enough: to collect a megabyte of them takes half a minute."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Strict):
    """Of a streamed answer."""

    include_usage: bool = False


class JsonSchema(_Strict):
    """A schema by OpenAI's form; it is always followed."""

    name: str = ""
    description: str = ""
    strict: bool = True
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(_Strict):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Strict):
    """The same by vLLM's names; one of them."""

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None


class Body(_Strict):
    """What completions and chat have in common.

    Not OpenAI's, but vLLM's: `ignore_eos`, `stop_token_ids`, `top_k` (0 or -1: all), `min_p`, `repetition_penalty`,
    `min_tokens`, `bad_words`, `allowed_token_ids` (no others are said), `prompt_logprobs`, `guided_...` and
    `structured_outputs`. Ours: `num_speculative_tokens` (one K of the artifact, -1 adapts it), `draft_weight` (share of
    drafts under `--length-policy priority`) and `specc`, which asks for the report at the end of the answer.
    """

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0)] = 1.0
    seed: Annotated[int, Field(ge=-_INT64, le=_INT64 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[Count], Field(max_length=64)] = []
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=_INT64 - 1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    logit_bias: dict[TokenName, Annotated[float, Field(ge=-100, le=100)]] = {}
    min_tokens: Count = 0
    bad_words: Annotated[list[StopString], Field(max_length=64)] = []
    allowed_token_ids: Annotated[list[Count], Field(min_length=1, fail_fast=True)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    num_speculative_tokens: Annotated[int, Field(ge=ADAPTIVE, le=1024)] | None = None
    draft_weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    specc: bool = False

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def most_logprobs(self) -> int:
        """How many of the best tokens to tell of beside the one said; -1 for no logprobs."""
        return -1

    @property
    def most_prompt_logprobs(self) -> int:
        """The same of the prompt's tokens."""
        return -1 if self.prompt_logprobs is None else self.prompt_logprobs

    @property
    def options(self) -> dict[str, Option]:
        """What is not as plain sampling has it, by the engine's names."""
        found: dict[str, Option] = {
            name: value
            for name, neutral in _PLAIN.items()
            if (value := getattr(self, name)) != neutral
        }
        if self.top_k > 0:
            found["top_k"] = self.top_k
        if self.logit_bias:
            found["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        if self.most_logprobs >= 0:
            found["logprobs"] = self.most_logprobs
        if self.most_prompt_logprobs >= 0:
            found["prompt_logprobs"] = self.most_prompt_logprobs
        return found

    @property
    def grammars(self) -> list[tuple[str, str, Any]]:
        """All that says what the answer must look like: parameter, kind of grammar, grammar."""
        asked: list[tuple[str, str, Any]] = [
            (f"guided_{kind}", kind, getattr(self, f"guided_{kind}")) for kind in KINDS
        ]
        if (form := self.response_format) is not None and form.type != "text":
            schema = form.json_schema.schema_ if form.json_schema else {"type": "object"}
            asked.append(("response_format", "json", schema))
        if (given := self.structured_outputs) is not None:
            where = "structured_outputs"
            asked += [(where, "json", given.json_), (where, "regex", given.regex)]
            asked += [(where, "choice", given.choice), (where, "grammar", given.grammar)]
            asked.append((where, "json", {"type": "object"} if given.json_object else None))
        return [each for each in asked if each[2] is not None]


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: str | Several[str] | Several[Count] | Several[Several[Count]]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def most_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def most_prompt_logprobs(self) -> int:
        """What is echoed has logprobs as what is said."""
        return max(super().most_prompt_logprobs, self.most_logprobs if self.echo else -1)

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several, as texts or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)


class Function(_Strict):
    """A call that the model asked for, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(_Strict):
    """One of a message's calls."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class Part(_Strict):
    """A piece of a message's content. Images and sounds are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One message. What its role may be is for the chat template to say."""

    role: str
    content: str | Several[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Several[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, message: Any) -> Any:
        """An answer of before, sent back with all that it could have had."""
        return (
            {k: v for k, v in message.items() if v is not None}
            if isinstance(message, dict)
            else message
        )

    def for_template(self) -> dict[str, Any]:
        """As templates expect it: content in one text, arguments as an object."""
        message = self.model_dump(exclude_none=True)
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        message["content"] = content
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _parsed(call["function"]["arguments"])
        return message


class ChatBody(Body):
    """POST /v1/chat/completions. Tools go to the chat template; what the model says is text."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    tools: Several[dict[str, Any]] = []
    tool_choice: Literal["none", "auto"] = "auto"
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0

    @property
    def most_logprobs(self) -> int:
        return self.top_logprobs if self.logprobs else -1


_B = TypeVar("_B", bound=Body)


def parse(kind: type[_B], data: bytes) -> _B:
    """A body. Raises RequestError: SPECC-E0702 (no such body), E0703 (asks for what is not there)."""
    try:
        document = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise _wrong("", "JSON", str(error)) from error
    if not isinstance(document, dict):
        raise _wrong("", "an object", type(document).__name__)
    # As in OpenAI's interface, null is as good as nothing.
    asked = {k: v for k, v in document.items() if v is not None and k not in _WITHOUT_EFFECT}
    for name, neutral in _NEUTRAL.items():
        if name in asked:
            given = asked.pop(name)
            if not any(_same(given, value) for value in neutral):
                raise unsupported(name)
    try:
        body = kind.model_validate(asked)
        body.model_dump_json()  # refuses text that is no Unicode: half of a surrogate pair
    except ValidationError as error:
        raise _first(error, asked) from error
    except ValueError as error:
        raise _wrong("", "Unicode text", str(error)) from error
    _check_together(body)
    if "stream_options" in asked and not body.stream:
        raise _wrong("stream_options", '"stream": true beside it', '"stream": false')
    return body


def _check_together(body: Body) -> None:
    """Refuse what makes no sense beside the rest."""
    if len(asked := body.grammars) > 1:
        names = " and ".join(where for where, _, _ in asked)
        raise _wrong(names, "one of them", "several")
    form = body.response_format
    if form is not None and (form.type == "json_schema") is not (form.json_schema is not None):
        raise _wrong("response_format", "a json_schema with type json_schema alone", form.type)
    if body.prompt_logprobs is not None and body.stream:
        raise _wrong("prompt_logprobs", '"stream": false beside it', '"stream": true')
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise _wrong("top_logprobs", '"logprobs": true beside it', '"logprobs": false')


def unsupported(name: str, why: str = "this engine cannot do it") -> RequestError:
    """The error for a parameter that would have to be ignored."""
    return RequestError(
        "SPECC-E0703", f"{name} is not supported: {why}", where=name, cure=f"leave {name} out"
    )


def out_of_range(name: str, expected: str, found: object) -> RequestError:
    """The error for a value that this artifact does not have."""
    return RequestError(
        "SPECC-E0704", f"{name} has a value it cannot have", where=name, expected=expected,
        found=str(found)[:200], cure=f"correct {name}",
    )  # fmt: skip


def _wrong(where: str, expected: str, found: str) -> RequestError:
    return RequestError(
        "SPECC-E0702", "the request's body is wrong", where=where or "body", expected=expected,
        found=found[:200], cure="correct it",
    )  # fmt: skip


@dataclass(frozen=True)
class _Complaint:
    """One of pydantic's, its place in what was asked, and how much of that leads to a union, if any does."""

    place: tuple[int | str, ...]
    union: int | None
    kind: str
    expected: str
    found: object

    @property
    def nearness(self) -> tuple[tuple[int | str, ...], bool]:
        """How far its branch had fitted: to a later place, or there at least by type."""
        return self.place, not self.kind.endswith("_type")


def _complaint(error: ErrorDetails, asked: Any) -> _Complaint:
    """What is no key or index of `asked` is pydantic's own name for a branch."""
    place: list[int | str] = []
    union = None
    missing = error["loc"][-1:] if error["type"] == "missing" else ()
    for part in error["loc"][: len(error["loc"]) - len(missing)]:
        is_index = isinstance(asked, list) and isinstance(part, int)
        if is_index or (isinstance(asked, dict) and part in asked):
            asked = asked[part]
            place.append(part)
        elif part != "[key]":
            union = len(place)
    return _Complaint((*place, *missing), union, error["type"], error["msg"], error["input"])


def _first(error: ValidationError, asked: dict[str, Any]) -> RequestError:
    """The first complaint; of a union, that of the branch that comes nearest to what was given."""
    errors = error.errors(include_url=False)
    first = _complaint(errors[0], asked)
    if (union := first.union) is not None:
        begins = errors[0]["loc"][:union]
        of_branches: dict[int | str, ErrorDetails] = {}
        for each in errors:
            if each["loc"][:union] == begins:
                of_branches.setdefault(each["loc"][union], each)
        firsts = [_complaint(each, asked) for each in of_branches.values()]
        nearest = max(each.nearness for each in firsts)
        first, *others = [each for each in firsts if each.nearness == nearest]
        first = replace(first, expected=_either([first.expected, *(o.expected for o in others)]))
    where = ".".join(map(str, first.place))
    if first.kind == "extra_forbidden":
        return unsupported(where or '""', "no such parameter is known")
    return _wrong(where, first.expected, repr(first.found))


def _either(expected: list[str]) -> str:
    """Where no branch comes nearer than another, what all of them want."""
    common = "Input should be "
    several = dict.fromkeys(each.removeprefix(common) for each in expected)
    return common + " or ".join(several) if len(several) > 1 else expected[0]


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; what is said of a name before would be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} more than once in an object")
    return made


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
