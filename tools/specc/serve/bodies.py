"""What a request may say. What the engine cannot do is refused by name, never ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specc.errors import RequestError
from specc.runtime import ADAPTIVE

_INT64 = 1 << 63

Count = Annotated[int, Field(ge=0, le=_INT64 - 1)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (), "best_of": (1,), "frequency_penalty": (0,), "function_call": (), "functions": (),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "length_penalty": (1,), "logit_bias": ({},), "logprobs": (False,), "min_p": (0,), "min_tokens": (0,),
    "modalities": (["text"],), "parallel_tool_calls": (True,), "prediction": (),
    "presence_penalty": (0,), "prompt_logprobs": (), "reasoning_effort": (),
    "repetition_penalty": (1,), "response_format": ({"type": "text"},), "service_tier": ("auto", "default"),
    "store": (False,), "structured_outputs": (),
    "suffix": (), "top_k": (0, -1), "top_logprobs": (), "top_p": (1,), "use_beam_search": (False,),
    "verbosity": (), "web_search_options": (),
}  # fmt: skip
"""What others can do and this engine cannot, with the values that ask for nothing."""

_WITHOUT_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "user")
"""For the operator of a service, not for the model: taken, and nothing is done with them."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Strict):
    """Of a streamed answer."""

    include_usage: bool = False


class Body(_Strict):
    """What completions and chat have in common.

    Not OpenAI's: `ignore_eos`, `stop_token_ids` (as in vLLM), `num_speculative_tokens` (one K of
    the artifact, -1 adapts it) and `specc`, which asks for the report at the end of the answer.
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
    num_speculative_tokens: Annotated[int, Field(ge=ADAPTIVE, le=1024)] | None = None
    specc: bool = False

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: str | list[str] | list[Count] | list[list[Count]]
    echo: bool = False

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
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
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

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["none", "auto"] = "auto"


_B = TypeVar("_B", bound=Body)


def parse(kind: type[_B], data: bytes) -> _B:
    """A body. Raises RequestError: SPECC-E0702 (no such body), E0703 (asks for what is not there)."""
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
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
        raise _first(error) from error
    except ValueError as error:
        raise _wrong("", "Unicode text", str(error)) from error
    if "stream_options" in asked and not body.stream:
        raise _wrong("stream_options", '"stream": true beside it', '"stream": false')
    return body


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


def _first(error: ValidationError) -> RequestError:
    """The first complaint; places inside unions without pydantic's names for their branches."""
    first = error.errors(include_url=False)[0]
    names = [str(p) for p in first["loc"] if isinstance(p, int) or p.isidentifier()]
    where = ".".join(names)
    if first["type"] == "extra_forbidden":
        return unsupported(where, "no such parameter is known")
    return _wrong(where, first["msg"], repr(first["input"]))


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
