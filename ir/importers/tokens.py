"""The tokenizer that comes with a model, as text: tokenizer.json, its companions, and how many ids are real."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.errors import ModelError
from specc.ir.importers.quiet import quiet
from specc.ir.importers.tokenizer_gguf import mend_gguf_tokenizer

if TYPE_CHECKING:
    from specc.ir.importers.gguf import GgufFile

_COMPANIONS = (
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja", "added_tokens.json",
)  # fmt: skip


@dataclass(frozen=True)
class TokenizerFiles:
    """`tokenizer_json` None: the model came without a tokenizer that can be read."""

    tokenizer_json: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)


def of_folder(folder: Path) -> TokenizerFiles:
    """The tokenizer of a Hugging Face folder; a sentencepiece model alone is converted by transformers.

    Raises ModelError (SPECC-E0207) for files that cannot be read.
    """
    files = {n: (folder / n).read_bytes() for n in _COMPANIONS if (folder / n).is_file()}
    path = folder / "tokenizer.json"
    if path.is_file():
        return TokenizerFiles(path.read_text(encoding="utf-8"), files)
    if any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "spiece.model")):
        try:
            from transformers import AutoTokenizer

            with quiet("transformers"):
                tokenizer: Any = AutoTokenizer.from_pretrained(
                    folder, trust_remote_code=False, local_files_only=True
                )
            return TokenizerFiles(tokenizer.backend_tokenizer.to_str(), files)
        except Exception as error:
            raise ModelError(
                "SPECC-E0207",
                f"the tokenizer cannot be read: {error}",
                where=str(folder),
                cure="add the model's tokenizer.json",
            ) from error
    return TokenizerFiles(None, files)


def of_gguf(file: GgufFile) -> TokenizerFiles:
    """The tokenizer of a GGUF, converted by transformers, with BOS added exactly if the file says so.

    Raises ModelError (SPECC-E0258) if it cannot be converted.
    """
    if "tokenizer.ggml.model" not in file.meta.fields:
        return TokenizerFiles()
    try:
        # AutoTokenizer would read the file twice more, to find by its configuration the class that this is.
        from transformers import PreTrainedTokenizerFast

        with quiet("transformers"):
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
                str(file.path.parent), gguf_file=file.path.name
            )
        text = tokenizer.backend_tokenizer.to_str()
        if file.meta.fields["tokenizer.ggml.model"] == "gpt2":
            pre = str(file.meta.fields.get("tokenizer.ggml.pre", "gpt-2"))
            text = json.dumps(mend_gguf_tokenizer(json.loads(text), pre), ensure_ascii=False)
        text = _with_bos(text, file)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "SPECC-E0258",
            f"the GGUF's tokenizer cannot be converted: {str(error)[:160]}",
            where=f"{file.path}: tokenizer.ggml.model = {file.meta.fields['tokenizer.ggml.model']}",
            cure="compile the model's Hugging Face folder, with its tokenizer.json",
        ) from error
    template = file.meta.fields.get("tokenizer.chat_template")
    return TokenizerFiles(text, {"tokenizer_config.json": _config(file, text, template)})


def _with_bos(text: str, file: GgufFile) -> str:
    """`text` with a post-processor that adds BOS if and only if `tokenizer.ggml.add_bos_token` says so."""
    from tokenizers import Tokenizer, processors

    fields = file.meta.fields
    bos = fields.get("tokenizer.ggml.bos_token_id")
    # llama.cpp: vocabularies of type "llama" add BOS unless told otherwise, others only if told so.
    wanted = fields.get("tokenizer.ggml.add_bos_token", fields["tokenizer.ggml.model"] == "llama")
    tokenizer = Tokenizer.from_str(text)
    has = bos is not None and tokenizer.encode("a").ids[:1] == [bos]
    if bos is None or bool(wanted) == has:
        return text
    name = tokenizer.id_to_token(int(bos))
    steps = f"{name}:0 $A:0" if wanted else "$A:0"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=steps, pair=f"{steps} $B:1", special_tokens=[(name, int(bos))]
    )
    result: str = tokenizer.to_str()
    return result


def _config(file: GgufFile, text: str, template: str | None) -> bytes:
    """A tokenizer_config.json with what the file states."""
    from tokenizers import Tokenizer

    tokenizer, fields = Tokenizer.from_str(text), file.meta.fields
    values: dict[str, Any] = {"add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token"))}
    for key, gguf_key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")):
        number = fields.get(f"tokenizer.ggml.{gguf_key}_token_id")
        if number is not None:
            values[key] = tokenizer.id_to_token(int(number))
    if template is not None:
        values["chat_template"] = template
    return json.dumps(values, ensure_ascii=False, indent=1).encode()


def vocabulary_size(found: TokenizerFiles, head_rows: int, where: Path) -> int:
    """How many ids are real: those the tokenizer has, at most the rows of the head; the rest of the head is padding.

    Raises ModelError (SPECC-E0217) if the tokenizer has ids that the head has no row for.
    """
    if found.tokenizer_json is None:
        return head_rows
    from tokenizers import Tokenizer

    try:
        vocabulary: dict[str, int] = Tokenizer.from_str(found.tokenizer_json).get_vocab(True)
    except Exception as error:
        raise ModelError("SPECC-E0207", f"tokenizer.json cannot be read: {error}", where=str(where),
                         cure="download tokenizer.json again") from error  # fmt: skip
    text, top = max(vocabulary.items(), key=lambda item: item[1], default=("", head_rows - 1))
    if top >= head_rows:
        shown = re.sub(r"[^ -~]", "?", text)[:40]
        raise ModelError(
            "SPECC-E0217",
            "the tokenizer has ids beyond the model's vocabulary",
            where=str(where),
            expected=f"ids below {head_rows} (rows of the head)",
            found=f"id {top} ({shown})",
            cure="use the tokenizer that belongs to these weights",
        )
    return top + 1
