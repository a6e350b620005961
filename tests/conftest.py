"""Models and artifacts that many tests share. Random and tiny, but real: exported, compiled and run like any other."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

# Makes `tests.passes.toy` importable however pytest is started.
sys.path.append(str(Path(__file__).parent.parent))
# A busy machine is no fault of what is tested.
settings.register_profile("specc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("specc")
# What torch traces is many objects that live on; looking through them time and again was a tenth of all tests.
gc.set_threshold(50_000, 10, 10)
torch.set_num_threads(1)  # tensors here are tiny, and threads that wait for each other spin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run what takes minutes, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    left = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def by_night(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Values of a parameter of which a run without --long takes those that are `kept` alone."""
    rows = [(v, v if isinstance(v, tuple) else (v,)) for v in values]
    return [v if v in kept else pytest.param(*row, marks=pytest.mark.long) for v, row in rows]


CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = (
    "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b\n"
    "What is the capital of France? Paris is. 0123456789 naïve café 日本語 🎉🔥 ∑\n"
)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def tiny_model(shared_folder: Path) -> Path:
    """A random Llama of four layers with a byte-level tokenizer and a chat template, in Hugging Face form."""
    folder = shared_folder / "tiny-llama"
    with FileLock(str(folder) + ".lock"):
        if not (folder / "done").exists():
            _make_model(folder)
            (folder / "done").touch()
    return folder


def _make_model(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=fast.bos_token_id, eos_token_id=fast.eos_token_id, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    fast.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


@pytest.fixture(scope="session")
def tiny_artifact(tiny_model: Path, shared_folder: Path) -> Path:
    """The tiny Llama compiled with method ngram, K = 0, 2, 4."""
    return compiled(tiny_model, shared_folder / "tiny-ngram.specc", "ngram")


BATCH_TEXTS, BATCH_LENGTH = 4, 64
"""Of 256 positions in all, as in other artifacts of the tiny model, so that its leaves are compiled once."""


def batch_of(method: str, model: Path, folder: Path, backend: str = "inductor") -> Path:
    """`model` for several texts in one pass."""
    several = {"max_num_seqs": BATCH_TEXTS, "max_model_len": BATCH_LENGTH, "prefill_chunk": 8}
    return artifact_of(method, model, folder, f"{backend}-batch", backend=backend, **several)


@pytest.fixture(scope="session")
def tiny_batch(tiny_model: Path, shared_folder: Path) -> Path:
    """The tiny Llama with method ngram, for four texts of up to 64 tokens."""
    return batch_of("ngram", tiny_model, shared_folder)


def greedy(model: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation by transformers' generate, with its own cache and attention."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    target.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    output = target.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def artifact_of(
    method: str, model: Path, folder: Path, stem: str = "tiny", **options: object
) -> Path:
    """`model` with `method`, under a name that all tests share: it is compiled once for them."""
    drafting: dict[str, object] = {
        "draft_model": {"drafter": str(model)},
        "layerskip": {"draft_layers": (0, 1, 3)},
        "eagle:adaptive": {"depths": (1, 3)},
    }.get(method, {})
    path = folder / f"{stem}-{method.replace(':', '-')}.specc"
    return compiled(model, path, method, **drafting, **options)


def compiled(model: Path, output: Path, method: str, **options: object) -> Path:
    """Compile once per run, whichever worker comes first."""
    from specc.backends.base import find_backend
    from specc.driver import compile_model
    from specc.progress import SilentProgress
    from specc.request import CompileRequest

    # A backend is imported outside the lock: where an import of TVM raises within, libtvm_ffi's backtrace maps the
    # file of a descriptor that it closed before, which may by then be the lock, and empty: a bus error.
    find_backend(str(options.get("backend", "inductor")))
    with FileLock(str(output) + ".lock"):
        if not output.exists():
            ks = None if method == "none" else (0, 2, 4)
            options = {"num_speculative_tokens": ks, "isa": "avx2"} | options
            request = CompileRequest(str(model), output, method=method, **options)  # type: ignore[arg-type]
            compile_model(request, SilentProgress())
    return output
