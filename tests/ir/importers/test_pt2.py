"""A user's own exported decoder, in the ways people write them."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn

from specc.errors import ModelError
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate
from specc.ir.importers.source import ImportedModel, load_model

VOCABULARY, HIDDEN, HEADS, WIDTH, LONGEST = 50, 32, 4, 8, 64


class Attention(nn.Module):
    """Every way to write it, by options."""

    def __init__(self, kv_heads: int, repeat: str, mask: str, scale: float | None) -> None:
        super().__init__()
        self.kv_heads, self.repeat, self.mask, self.scale = kv_heads, repeat, mask, scale
        self.q = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.kv = nn.Linear(HIDDEN, 2 * kv_heads * WIDTH)
        self.o = nn.Linear(HEADS * WIDTH, HIDDEN)
        self.register_buffer("tril", torch.ones(LONGEST, LONGEST).tril() == 1)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, rows, _ = x.shape
        q = self.q(x).view(batch, rows, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(batch, rows, 2 * self.kv_heads, WIDTH).chunk(2, 2)
        times = HEADS // self.kv_heads
        if self.repeat == "before-transpose":
            k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if rope is not None:
            q, k = turn(q, *rope), turn(k, *rope)
        if self.repeat == "interleave":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        elif self.repeat == "expand":
            shape = (batch, self.kv_heads, times, rows, WIDTH)
            k = k[:, :, None].expand(shape).reshape(batch, HEADS, rows, WIDTH)
            v = v[:, :, None].expand(shape).reshape(batch, HEADS, rows, WIDTH)
        if self.mask == "unfused":
            scores = q @ k.transpose(2, 3) / WIDTH**0.5
            scores = scores.masked_fill(~self.tril[:rows, :rows], float("-inf"))
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, self.made_mask(rows), is_causal=self.mask == "is_causal",
                scale=self.scale, enable_gqa=self.repeat == "gqa",
            )  # fmt: skip
        return self.o(y.transpose(1, 2).reshape(batch, rows, -1))

    def made_mask(self, rows: int) -> Tensor | None:
        place = torch.arange(rows)
        gap = place[:, None] - place[None, :]
        match self.mask:
            case "is_causal" | "none":
                return None
            case "buffer":
                return self.tril[:rows, :rows]
            case "float":
                return torch.zeros(rows, rows).masked_fill(gap < 0, float("-inf"))[None, None]
            case "window":
                return (gap >= 0) & (gap < 5)
            case "bidirectional":
                return gap > -3
            case "alibi":
                return torch.where(gap < 0, float("-inf"), -0.1 * gap)
        raise AssertionError(self.mask)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder(nn.Module):
    def __init__(
        self, kv_heads: int = 2, repeat: str = "interleave", mask: str = "is_causal",
        positions: str = "rope", scale: float | None = None, flat: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(0)
        self.positions, self.flat = positions, flat
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.learned = nn.Embedding(LONGEST, HIDDEN)
        angles = torch.arange(LONGEST)[:, None] / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("table", torch.cat([angles, angles], 1))
        self.layers = nn.ModuleList(Attention(kv_heads, repeat, mask, scale) for _ in range(2))
        self.mix = nn.Conv1d(HIDDEN, HIDDEN, 3)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        if self.flat:
            tokens = tokens[None]
        rows = tokens.shape[1]
        x, rope = self.embed(tokens), None
        match self.positions:
            case "learned":
                x = x + self.learned(torch.arange(rows))
            case "sliced":
                x = x + self.learned.weight[:rows]
            case "rope":
                angles = torch.outer(torch.arange(rows).float(), self.table[1])
                rope = (angles.cos(), angles.sin())
            case "table":
                rope = (self.table[:rows].cos(), self.table[:rows].sin())
            case "input":
                assert places is not None
                angles = self.table[places[0]]
                rope = (angles.cos(), angles.sin())
            case "convolution":
                x = x + self.mix(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
            case "running":
                x = x + x.cumsum(1)
        for layer in self.layers:
            x = x + layer(self.norm(x), rope)
        logits = self.head(x)
        return logits[0] if self.flat else logits


def save(folder: Path, dynamic: bool = True, **options: Any) -> Path:
    model = Decoder(**options).eval()
    dim = 0 if model.flat else 1
    shape = (9,) if model.flat else (1, 9)
    inputs = [torch.zeros(shape, dtype=torch.int64)]
    if model.positions == "input":
        inputs.append(torch.arange(9)[None])
    rows = torch.export.Dim("rows", min=2, max=LONGEST - 1)
    shapes = [{dim: rows} for _ in inputs] if dynamic else None
    program = torch.export.export(model, tuple(inputs), dynamic_shapes=shapes)
    path = folder / "model.pt2"
    torch.export.save(program, path)
    return path


def attentions(imported: ImportedModel) -> list[Any]:
    graph = imported.program.functions["target"].graph
    return [n for n in graph.nodes if n.target is ops.attention.default]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "window"),
    [
        ({}, 0),
        ({"flat": True, "repeat": "gqa"}, 0),
        ({"repeat": "expand", "positions": "table", "scale": 0.7}, 0),
        ({"repeat": "before-transpose", "mask": "buffer", "positions": "learned"}, 0),
        ({"kv_heads": 4, "mask": "float", "positions": "learned"}, 0),
        ({"kv_heads": 1, "mask": "window", "positions": "sliced"}, 5),
        ({"positions": "input"}, 0),
    ],
    ids=str,
)
def test_same_logits(tmp_path: Path, options: dict[str, Any], window: int) -> None:
    imported = load_model(str(save(tmp_path, **options)))
    found = attentions(imported)
    assert [n.args[7] for n in found] == [0, 1]
    assert {n.args[5] for n in found} == {window}
    heads = {int(n.args[1].meta["type"].shape[1]) for n in found}
    assert heads == {options.get("kv_heads", 2)}, "repeated heads are not undone"
    tokens = torch.randint(0, VOCABULARY, (24,))
    got = evaluate(imported.program, "target", [tokens, torch.arange(24)], {})[0]
    assert imported.eager is not None
    want = imported.eager(tokens)
    assert float((got - want).abs().max() / want.abs().max()) < 1e-5
    assert imported.program.model.max_position == LONGEST - 1
    assert imported.program.model.hidden_size == HIDDEN


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", ["{", "[" * 100000])
def test_ends_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """Without them no text would end."""
    path = save(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match="SPECC-E0207"):
        load_model(str(path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mask": "none"}, "SPECC-E0264"),
        ({"mask": "bidirectional"}, "SPECC-E0265"),
        ({"mask": "alibi"}, "SPECC-E0265"),
        ({"mask": "unfused"}, "SPECC-E0266"),
        ({"positions": "convolution"}, "SPECC-E0225"),
        ({"positions": "running"}, "SPECC-E0216"),
        ({"dynamic": False}, "SPECC-E0263"),
    ],
    ids=str,
)
def test_refused_by_name(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    path = save(tmp_path, **options)
    with pytest.raises(ModelError, match=code) as error:
        load_model(str(path))
    assert error.value.where
    assert error.value.cure


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a pickle was executed",))


def change(path: Path, entry: str, new: Any) -> None:
    """Rewrite one entry of the archive; `new` is bytes or a function of the parsed JSON."""
    with zipfile.ZipFile(path) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    name = next(n for n in content if n.endswith(entry))
    if callable(new):
        document = json.loads(content[name])
        new(document)
        content[name] = json.dumps(document).encode()
    else:
        content[name] = new
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, value in content.items():
            archive.writestr(key, value)


def use_pickle(document: dict[str, Any]) -> None:
    next(iter(document["config"].values()))["use_pickle"] = True


def call(document: dict[str, Any]) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.hub.load"


def expression(document: dict[str, Any]) -> None:
    ranges = document["range_constraints"]
    ranges["__import__('os').system('true')"] = next(iter(ranges.values()))


@pytest.mark.filterwarnings("ignore")
def test_nothing_in_an_archive_is_executed(tmp_path: Path) -> None:
    attacks = {
        "model_weights_config.json": use_pickle, "sample_inputs/model.pt": pickle.dumps(Bomb()),
        "models/model.json": call, "/models/model.json": expression,
    }  # fmt: skip
    original = save(tmp_path).read_bytes()
    for entry, attack in attacks.items():
        path = tmp_path / "changed.pt2"
        path.write_bytes(original)
        change(path, entry, attack)
        with pytest.raises(ModelError, match="SPECC-E0262"):
            load_model(str(path))
    for cut in (0, 100, len(original) // 2):
        path = tmp_path / "cut.pt2"
        path.write_bytes(original[:cut])
        with pytest.raises(ModelError, match="SPECC-E0261"):
            load_model(str(path))
