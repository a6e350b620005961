"""The JSON files around libraries: what MLC's engine, apps and packager read. Schemas lie beside this file.

Names and meanings are those of mlc-ai/mlc-llm (cpp/serve/config.cc, python/mlc_llm/protocol/mlc_chat_config.py,
python/mlc_llm/interface/package.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specc.backends.tvm.mlc.writer import Limits
from specc.ir import ModelInfo

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
)  # fmt: skip
MODES = {"none": "disable", "draft_model": "small_draft", "eagle": "eagle", "medusa": "medusa"}
"""`--method` to MLC's speculative_mode. What is not here, MLC cannot express."""


@dataclass(frozen=True)
class Chat:
    """How a conversation becomes a prompt: text around what user and assistant say, and what ends an answer."""

    system: str = "{system_message}"
    system_message: str = ""
    before_answer: str = ""
    after_user: str = ""
    after_assistant: str = ""
    ask: str = ""
    """Ends a prompt, after what follows the user."""
    stop_token_ids: tuple[int, ...] = ()
    prefix_token_ids: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """MLC's conv_template."""
        return {
            "name": "specc", "system_template": self.system, "system_message": self.system_message,
            "system_prefix_token_ids": list(self.prefix_token_ids) or None, "add_role_after_system_message": True,
            "roles": {"user": "", "assistant": ""},
            "role_templates": {
                "user": "{user_message}", "tool": "{tool_message}",
                "assistant": f"{self.before_answer}{{assistant_message}}",
            },
            "messages": [], "seps": [self.after_user, self.after_assistant], "role_content_sep": "",
            "role_empty_sep": self.ask, "stop_str": [], "stop_token_ids": list(self.stop_token_ids),
            "function_string": "", "use_function_calling": False,
        }  # fmt: skip


@dataclass(frozen=True)
class Model:
    """One folder of the output: `name` is target or drafter, `library` what `model_lib` says, `bytes` its weights'."""

    name: str
    library: str
    file: str
    bytes: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


def chat_config(
    metadata: Mapping[str, Any], info: ModelInfo, vocabulary: int, chat: Chat, files: Sequence[str],
    tokenizer: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """mlc-chat-config.json. `vocabulary`: rows of the head; `tokenizer`: tokenizer.json, or nothing."""
    sizes = {
        "context_window_size": metadata["context_window_size"], "sliding_window_size": -1,
        "prefill_chunk_size": metadata["prefill_chunk_size"], "attention_sink_size": -1,
        "tensor_parallel_shards": 1, "pipeline_parallel_stages": 1,
    }  # fmt: skip
    inner = {
        **sizes, "vocab_size": vocabulary, "hidden_size": info.hidden_size,
        "max_batch_size": metadata["max_batch_size"],
        **metadata.get("kv_cache", {}),
    }  # fmt: skip
    return {
        "version": "0.1.0", "model_type": metadata["model_type"], "quantization": metadata["quantization"],
        "model_config": inner, "vocab_size": vocabulary, "active_vocab_size": info.vocab_size, **sizes,
        "disaggregation": False, "model_task": "chat", "temperature": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "repetition_penalty": 1.0, "top_p": 1.0,
        "tokenizer_files": [n for n in TOKENIZER_FILES if n in files],
        "tokenizer_info": tokenizer_info(tokenizer), "conv_template": chat.as_json(),
        "pad_token_id": 0, "bos_token_id": info.bos_token_id, "eos_token_id": list(info.eos_token_ids),
    }  # fmt: skip


def tokenizer_info(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """How pieces become text, told by tokenizer.json's decoder and normaliser."""

    def stages(name: str, inside: str) -> list[Mapping[str, Any]]:
        found = tokenizer.get(name) or {}
        return list(found.get(inside, [])) if found.get("type") == "Sequence" else [found]

    decoders, normalisers = stages("decoder", "decoders"), stages("normalizer", "normalizers")
    space = {"type": "Prepend", "prepend": "\u2581"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "token_postproc_method": "byte_level" if any(d.get("type") == "ByteLevel" for d in decoders)
        else "byte_fallback",
        "prepend_space_in_encode": any(space.items() <= dict(n).items() for n in normalisers),
        "strip_space_in_decode": any(strip.items() <= dict(d).items() for d in decoders),
    }  # fmt: skip


def engine_config(models: Sequence[Model], mode: str, k: int, limits: Limits) -> dict[str, Any]:
    """engine.json: the target, and who drafts. Without K + 1 sequences the engine waits for ever."""
    target, *others = models
    speculation = {} if mode == "disable" else {
        "additional_models": [[m.name, m.library] for m in others], "spec_draft_length": k, "spec_tree_width": 1,
    }  # fmt: skip
    return {
        "model": target.name, "model_lib": target.library, "mode": "local", "speculative_mode": mode, **speculation,
        "max_num_sequence": limits.batch, "max_total_sequence_length": limits.context,
        "max_single_sequence_length": limits.context, "prefill_chunk_size": limits.chunk,
        "kv_cache_page_size": 16, "prefix_cache_mode": "disable",
    }  # fmt: skip


def package_config(models: Sequence[Model], device: str, limits: Limits) -> dict[str, Any]:
    """mlc-package-config.json, for `mlc_llm package` in the folder: both libraries are linked, both weights bundled."""
    return {
        "device": device,
        "model_list": [
            {
                "model": m.name, "model_id": m.name, "estimated_vram_bytes": m.bytes, "bundle_weight": True,
                "model_lib": m.library.removeprefix("system://"),
                "overrides": {"max_batch_size": limits.batch, "context_window_size": limits.context},
            }
            for m in models
        ],
        "model_lib_path_for_prepare_libs": {
            m.library.removeprefix("system://"): f"{m.name}/{m.file}" for m in models
        },
    }  # fmt: skip
