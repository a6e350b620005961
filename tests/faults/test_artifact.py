"""Faults of options, files and machines: what is refused, when, and in which words (B32 to B96)."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specc import cli
from specc.errors import ArtifactError, ModelError, RequestError
from specc.ir.evaluate import evaluate
from specc.ir.importers.source import load_model
from specc.runtime import Artifact, Manifest, native
from specc.streaming import TextStream
from tests.conftest import artifact_of
from tests.faults.helpers import METHODS, PROMPT, altered, plain
from tests.ir.importers.drafters import synthetic
from tests.ir.importers.tiny_models import tiny

ROOT = Path(__file__).parents[2]
IDS = ",".join(map(str, PROMPT))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", ["n", "num_beams", "best_of"])
def test_b32_what_is_not_built_is_refused_by_name(
    ngram: Artifact, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Never dropped in silence: the C ABI and the command line name what they do not know."""
    library = ngram._library
    with ngram.session() as session:
        for call, value in (("set_int", 2), ("set_float", 0.5)):
            function = getattr(library, f"specc_session_{call}")
            with pytest.raises(RequestError, match="SPECC-E0601") as error:
                native.check(library, function(session.handle, name.encode(), value))
            assert name in str(error.value)
    flag = "--" + name.replace("_", "-")
    code, out, err = run(capsys, "run", ngram.path, "--token-ids", IDS, flag, 2)
    assert (code, out) == (2, "")
    assert "SPECC-E0102" in err
    assert flag in err


def test_b34_bench_says_where_time_goes_and_what_breaks_even(
    ngram: Artifact, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A breakdown of the widest K, the acceptance that each K needs, and a plain word on who is faster."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"token_ids": PROMPT}))
    code, out, _ = run(
        capsys, "bench", ngram.path, "--prompts", prompts, "--max-tokens", 24, "--repeats", 2,
        "--synthetic-acceptance", "0.0",
    )  # fmt: skip
    assert code == 0
    lines = out.splitlines()
    (spent,) = (line for line in lines if line.startswith("  time, K=4:"))
    assert all(f"{part} " in spent for part in ("draft", "verify", "other"))
    assert any(line.startswith("  break-even:") for line in lines)
    for k in ngram.manifest.num_speculative_tokens[1:]:
        (row,) = (line.split() for line in lines if line.startswith(f"  {k} "))
        cost, given, word = row[2], row[3], row[-1]
        assert given == "1.00"  # nothing is ever accepted
        # (What a round costs is measured, and may come out below a plain one's where the machine is busy.)
        assert cost == "1.00" or word == ("pays" if float(cost) < 1 else "loses")
    assert "plain" in lines[-1]


@pytest.mark.parametrize(
    "flags", [[], ["--draft-layers", "0"], ["--draft-layers", "0,1,2"]],
    ids=["calibrated", "given one", "given three"],
)  # fmt: skip
def test_b38_a_draft_of_few_layers_is_measured_before_it_is_sold(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """Compiling prints the agreement it measured, and warns if less than plain speed is to be expected."""
    code, _, err = run(
        capsys, "compile", tiny_model, "--method", "layerskip", *flags, "--backend", "reference",
        "--max-model-len", 96, "-o", tmp_path / "art",
    )  # fmt: skip
    assert code == 0, err
    assert "agrees 0." in err
    assert "of plain speed is expected" in err
    assert "will not pay" in err


def test_b46_one_context_for_target_and_drafter(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked for is in the manifest once, and both models' state has that length."""
    flags = ["--method", "draft_model", "--drafter", tiny_model, "--backend", "reference"]
    code, _, err = run(
        capsys, "compile", tiny_model, *flags, "--max-model-len", 96, "-o", tmp_path / "art"
    )
    assert code == 0, err
    manifest = Manifest.read(tmp_path / "art")
    assert manifest.model.max_model_len == 96
    owners = {buffer.owner for buffer in manifest.state}
    assert len(owners) == 2
    for buffer in manifest.state:
        assert 96 in buffer.shape, buffer.name
        assert not {256, 2048} & set(buffer.shape), buffer.name
    # A drafter that cannot go that far is refused, with the context that both can.
    short = tmp_path / "short"
    shutil.copytree(tiny_model, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    flags[3] = short
    code, _, err = run(
        capsys, "compile", tiny_model, *flags, "--max-model-len", 96, "-o", tmp_path / "other"
    )
    assert code == 1
    assert "SPECC-E0232" in err
    assert "--max-model-len 64" in err
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def speaking(ngram: Artifact) -> tuple[list[int], list[int]]:
    """A prompt and its greedy answer, in which a character is made of several tokens."""
    for first in range(8, 300):
        prompt = [first, 3 + first * 7 % 250]
        answer = list(plain(ngram, prompt, 96))
        text = ngram.detokenize(answer, skip_special=True)
        for character in {c for c in text if ord(c) > 127} - {"\N{REPLACEMENT CHARACTER}"}:
            if not any(character in ngram.detokenize([token]) for token in answer):
                return prompt, answer
    pytest.fail("no prompt makes the tiny model say such a character")


@pytest.mark.parametrize("k", [0, 2, 4])
def test_b62_a_character_of_several_tokens_in_a_stream(
    ngram: Artifact, speaking: tuple[list[int], list[int]], k: int
) -> None:
    """All pieces are the final text: half a character given out would show as U+FFFD where the text has it whole."""
    prompt, answer = speaking
    stream = TextStream(ngram.detokenize)
    pieces: list[str] = []
    found = ngram.generate(
        prompt, max_tokens=len(answer), ignore_eos=True, num_speculative_tokens=k,
        on_token=lambda token: pieces.append(stream.push(token)),
    )  # fmt: skip
    pieces.append(stream.finish())
    assert list(found.token_ids) == answer
    assert "".join(pieces) == ngram.detokenize(answer)
    assert sum(map(bool, pieces)) > 10
    ids = ngram.tokenize("🎉🔥 ∑ 日本語", add_special=False)
    stream = TextStream(ngram.detokenize)
    said = [*map(stream.push, ids), stream.finish()]
    assert "".join(said) == "🎉🔥 ∑ 日本語"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in said)


def test_b62_the_c_program_writes_whole_characters(
    ngram: Artifact, speaking: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    """Each write of the example is valid UTF-8, and together they are the final text."""
    program = tmp_path / "example"
    library = ngram.path / "lib"
    spy = tmp_path / "spy.c"  # its fwrite notes where each piece ends
    spy.write_text(
        "#include <stdio.h>\n"
        "size_t piece(const void* p, size_t size, size_t n, FILE* f) {\n"
        "  size_t done = fwrite(p, size, n, f);\n"
        "  fputc(0, f);\n"
        "  return done;\n"
        "}\n"
    )
    subprocess.run(
        ["cc", "-std=c99", "-Dfwrite=piece", "-include", "stdio.h", f"-I{ngram.path / 'include'}",
         "-c", str(ROOT / "examples/c/main.c"), "-o", str(tmp_path / "main.o")],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["cc", str(spy), str(tmp_path / "main.o"), "-o", str(program), f"-L{library}", "-lspecc",
         f"-Wl,-rpath,{library}"],
        check=True, capture_output=True,
    )  # fmt: skip
    texts = {ngram.detokenize(speaking[0]), "🎉🔥 ∑ 日本語", "The quick", "naïve café"}
    for text in texts:
        if "\N{REPLACEMENT CHARACTER}" in text:
            continue
        ids = ngram.tokenize(text, add_special=True, parse_special=True)
        found = ngram.generate(ids, max_tokens=90)
        output = subprocess.run(
            [str(program), str(ngram.path), text, "90"], capture_output=True, check=True, env={}
        ).stdout
        pieces = output.removesuffix(b"\n").split(b"\0")
        for piece in pieces:
            piece.decode("utf-8")
        assert b"".join(pieces).decode() == ngram.detokenize(found.token_ids).replace("\0", "")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("present", [True, False], ids=["head", "no-head"])
def test_b64_b66_heads_are_what_the_tensors_say(tmp_path: Path, tied: bool, present: bool) -> None:
    """A head in the file is used whatever the flag says; without one the flag decides, and a missing key is refused."""
    model = tiny("llama", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    if present:
        tensors["lm_head.weight"] = head
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    if not present and not tied:
        with pytest.raises(ModelError, match="SPECC-E0208") as error:
            load_model(str(tmp_path))
        assert "lm_head.weight" in str(error.value)
        return
    tokens = torch.arange(3, 15)
    imported = load_model(str(tmp_path))
    found = evaluate(imported.program, "target", [tokens, torch.arange(12)], {})[0]
    with torch.no_grad():
        hidden = model.get_decoder()(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        rows = head if present else tensors["model.embed_tokens.weight"]
        torch.testing.assert_close(found, hidden @ rows.T)


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--method", "draft_model", "--drafter", "HEAD"], 1, ("draft head for another model",)),
        (["--method", "layerskip", "--drafter", "HEAD"], 2, ("--drafter", "--method draft_model")),
        (
            ["--method", "eagle", "--drafter", "HEAD"],
            1,
            ("SPECC-E0272", "--method eagle3 --drafter"),
        ),
        (["--method", "mtp", "--drafter", "HEAD"], 1, ("SPECC-E0272", "--method eagle3 --drafter")),
        (["--method", "mtp"], 1, ("SPECC-E0272", "no MTP layer in its files")),
        (["--method", "eagle3"], 2, ("trained for this very model", "--method suffix")),
        (["--method", "draft_model"], 2, ("--drafter",)),
        (["--method", "ngram", "--depths", "2"], 2, ("--depths", "--method eagle:adaptive")),
    ],
)
def test_b72_a_method_that_the_drafter_is_not_for(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str],
    status: int, words: tuple[str, ...],
) -> None:  # fmt: skip
    """One line with a code says what is wrong, another what to do; nothing is left behind."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    synthetic.specforge_eagle3(tmp_path / "head", model)
    given = [str(tmp_path / "head") if f == "HEAD" else f for f in flags]
    arguments = ["compile", tiny_model, *given, "--backend", "reference", "-o", tmp_path / "art"]
    code, out, _ = run(capsys, *arguments, "--json")
    error = json.loads(out)["error"]
    assert code == status
    assert error["code"].startswith("SPECC-E0")
    assert error["code"] != "SPECC-E0100"  # which is: internal
    assert error["what"].count("\n") == 0
    assert error["cure"]
    assert all(word in json.dumps(error) for word in words), error
    assert [p.name for p in tmp_path.iterdir()] == ["head"]


def test_b82_isa_is_refused_where_it_kills_and_silent_where_it_does_not(
    ngram: Artifact, tmp_path: Path
) -> None:
    """Code for less than this CPU loads without a word; for more, or mislabelled, with a code before it is mapped."""
    program = "import sys; from specc.runtime import Artifact; Artifact.load(sys.argv[1])"

    def load(path: Path) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert ngram.manifest.device.isa == "x86-64-v3"
    assert load(ngram.path) == (0, "")
    for isa, code in (("x86-64-v9", "SPECC-E0504"), ("x86-64-v2", "SPECC-E0506")):
        path = altered(ngram.path, tmp_path / isa, lambda m, isa=isa: m["device"].update(isa=isa))
        status, text = load(path)
        assert status == 1
        assert code in text
        # What the cure names is a flag that there is.
        assert "--cpu" not in text


def _loaders(library: Path) -> dict[str, Callable[[Path], object]]:
    """Every door an artifact comes in by."""
    loaded = native.load_library(library)

    def by_abi(path: Path) -> None:
        handle = ctypes.c_void_p()
        result = loaded.specc_artifact_load(str(path).encode(), 1, ctypes.byref(handle))
        native.check(loaded, result)

    return {"abi": by_abi, "python": Artifact.load, "manifest": Manifest.read}


@pytest.mark.parametrize("door", ["abi", "python", "manifest"])
@pytest.mark.parametrize("field", ["schema_version", "abi"])
@pytest.mark.parametrize("step", [1, -1])
def test_b88_another_version_is_refused_before_anything_else(
    ngram: Artifact, tmp_path: Path, door: str, field: str, step: int
) -> None:
    """N+1 and N-1, of which nothing else is as we know it: the code of versions, and what to rebuild."""

    def change(manifest: dict[str, Any]) -> None:
        version = manifest[field] + step
        keep = {"schema_version": manifest["schema_version"], "abi": manifest["abi"]}
        manifest.clear()
        manifest.update({**keep, field: version, "device": {"kind": "of tomorrow"}})

    path = altered(ngram.path, tmp_path / "art", change)
    with pytest.raises(ArtifactError, match="SPECC-E0503") as error:
        _loaders(ngram.path / "lib/libspecc.so")[door](path)
    assert field in error.value.where
    assert ("update specc" if step > 0 else "compile the artifact again") in error.value.cure


_MEASURE = """
import resource, sys
from specc.errors import SpeccError
from specc.runtime import Artifact

def held():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["VmData"].split()[0]) * 1024

count, room = int(sys.argv[2]), int(sys.argv[3])
artifact = Artifact.load(sys.argv[1], 1)
sessions = [artifact.session()]
sessions[0].append([5, 6, 7])
# Python must not be the one that finds no memory: arenas of its own, with room in them.
spare = [bytes(200) for _ in range(40000)]
spare = spare[::2000]
before = held()
if room:
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, -1))
try:
    for _ in range(count):
        sessions.append(artifact.session())
except SpeccError as error:
    print(error.code)
    # Running takes scratch that all sessions share; state of their own they must have by now.
    resource.setrlimit(resource.RLIMIT_AS, (size + room + 8 * 2**20, -1))
else:
    print((held() - before) / count)
for session in sessions:
    session.configure(max_tokens=9, ignore_eos=True)
    session.append([5, 6, 7])
    assert len(list(session.iterate())) == 9
"""


def test_b96_memory_is_predicted_and_taken_when_a_session_opens(
    tiny_model: Path, shared_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`inspect --memory` counts the drafter and is right to 5 %; what does not fit fails on opening, the rest works."""
    path = artifact_of("draft_model", tiny_model, shared_folder)
    code, out, _ = run(capsys, "inspect", path, "--memory", "--json")
    assert code == 0
    plan = json.loads(out)["memory"]
    assert len(plan["state_bytes_by_zone"]) == 2

    def measured(count: int, room: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", _MEASURE, str(path), str(count), str(room)],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    # Many of them, since Python's arenas come a MiB at a time; and beside its state a session has tables of its own.
    # (Most of them are views of its inputs, for every number of rows that a prefill may have.)
    tables = 256 * 1024
    taken = float(measured(200, 0))
    assert 0.95 * plan["state_bytes"] <= taken <= 1.05 * plan["state_bytes"] + tables
    assert measured(4000, 40 * plan["state_bytes"]) == "SPECC-E0608"


def test_artifacts_one_after_another_run_their_own_code(
    tiny_model: Path, shared_folder: Path, windowed: Artifact
) -> None:
    """A library that its threads still hold after it was closed is not taken for the next one (found here)."""
    wanted = plain(windowed, PROMPT, 12)
    texts = set()
    for method in (*METHODS, *reversed(METHODS)):
        with Artifact.load(artifact_of(method, tiny_model, shared_folder)) as artifact:
            texts.add(artifact.generate(PROMPT, max_tokens=12, ignore_eos=True).token_ids)
        with Artifact.load(windowed.path) as artifact:
            assert artifact.generate(PROMPT, max_tokens=12).token_ids == wanted
    assert len(texts) == 1
