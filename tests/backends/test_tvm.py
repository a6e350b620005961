"""Programs through TVM, played by TVM's own runtime: transformers' text, and what eager rounds say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from specc.backends.tvm.converter import CONVERSIONS
from specc.backends.tvm.kernels import lowered
from specc.errors import BackendError
from specc.ir import Function, Role, TensorType
from specc.ir.dialect import ops
from specc.ir.encodings import Encoding
from specc.ir.graphs import Builder
from specc.ir.importers.drafters import Target, load_drafter
from specc.ir.importers.huggingface import import_model
from specc.ir.infer import infer_types
from specc.passes import pipelines
from tests.backends.tvm_player import ISA, Player, played
from tests.conftest import by_night
from tests.ir.importers.drafters import reference
from tests.ir.importers.tiny_models import FAMILIES, eager_logits, tiny
from tests.passes import test_trained_drafters as trained
from tests.passes import toy
from tests.passes.driver import generate

aten = torch.ops.aten
SHAPE = pipelines.Shape((0, 2), 32, 8)
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3, 2]
NEW = 6
FAMILIES_TRIED = (
    "llama-mqa-bias-tied", "qwen2-window", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "olmo2",
    "cohere-qk-norm", "mixtral", "gpt-oss-sinks",
)  # fmt: skip


@pytest.mark.parametrize(
    "family", by_night(FAMILIES_TRIED, "llama-mqa-bias-tied", "gemma2", "gpt-oss-sinks")
)
def test_families_say_what_transformers_says(family: str) -> None:
    kind, values = FAMILIES[family]
    model = tiny(kind, **values)
    want = list(PROMPT)
    for _ in range(NEW):
        want.append(int(eager_logits(model, torch.tensor(want))[-1].argmax()))
    program = pipelines.host("ngram", SHAPE, {})(import_model(model, family))
    right = lambda text, k: (want[len(text) :] + [0] * k)[:k]  # noqa: E731
    tokens, rounds = generate(played(program), PROMPT, NEW, [2, 0], drafts=right, poison=1e3)
    assert tokens == want[len(PROMPT) :]
    assert rounds[0] == (2, 2)


@pytest.mark.parametrize("method", ["draft_model", "layerskip", "eagle3", "medusa", "dspark"])
def test_drafters_draft_what_they_draft_in_eager(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    options: dict[str, Any] = {"count": 5, "ks": [2, 0], "chunk": 3, "poison": 1e3}
    found = generate(played(program), [3, 1, 4, 1, 5], **options)
    assert found == generate(program, [3, 1, 4, 1, 5], **options)


@pytest.mark.parametrize(
    "layout",
    by_night(["dspark-few-tokens", "mtp", "medusa", "dflash-window", "dspark-rnn"], "dspark-few-tokens", "mtp"),
)  # fmt: skip
def test_trained_drafters_draft_what_eager_code_on_the_checkpoint_drafts(
    layout: str, tmp_path: Path
) -> None:
    model, imported = trained.target()
    folder = trained.DRAFTERS[layout](tmp_path, model)
    checkpoint = load_drafter(folder, Target.of(imported))
    program = pipelines.trained(trained.SHAPE, checkpoint.spec.kind, checkpoint)(imported)
    drafted: list[tuple[list[int], list[int]]] = []
    generate(played(program), trained.PROMPT, 5, [4, 2, 0], chunk=3, drafted=drafted)
    assert len(drafted) >= 2
    for text, drafts in drafted:
        assert drafts == reference.draft(folder, model, text, len(drafts)), len(text)


def _leaf(name: str, build: Any, *inputs: TensorType) -> Function:
    """A leaf that does what `build` writes with its inputs."""
    builder = Builder()
    nodes = [builder.input(f"x{i}", t) for i, t in enumerate(inputs)]
    results = build(builder, *nodes)
    graph = builder.output(*results)
    infer_types(graph)
    return Function(name, Role.LEAF, graph, tuple(f"y{i}" for i in range(len(results))))


def _both(leaf: Function, *args: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What TVM makes of `args`, and what torch does; state among them is compared by the caller."""
    ours = Player(lowered(leaf, ISA))(*args)
    return ours, list(fx.GraphModule({}, leaf.graph)(*args))


def test_what_has_no_form_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    def build(b: Builder, x: fx.Node) -> list[fx.Node]:
        y = b.op(aten.cumprod.default, x, 0)
        y.meta["origin"] = "model.layers.3.mlp"
        return [y]

    with pytest.raises(BackendError) as refused:
        lowered(_leaf("odd", build, TensorType("f32", ("T", 4))), ISA)
    assert refused.value.code == "SPECC-E0441"
    assert refused.value.what == "there is no TVM form of aten.cumprod.default"
    assert refused.value.where == "odd: model.layers.3.mlp"
    assert capfd.readouterr().err == "", "TVM has nothing to add"


def test_quantised_weights_are_refused_by_name() -> None:
    def build(b: Builder, x: fx.Node, w: fx.Node) -> list[fx.Node]:
        return [b.op(ops.linear.default, x, w, None, 16, "q8g32")]

    packed = Encoding.parse("q8g32").type(16, 32)
    with pytest.raises(BackendError, match="weights in q8g32"):
        lowered(_leaf("q", build, TensorType("f32", ("T", 32)), packed), ISA)


CACHE, ROWS = TensorType("f32", (2, 16, 4)), TensorType("i64", ("T",))


def _writer(b: Builder, cache: fx.Node, x: fx.Node, rows: fx.Node) -> list[fx.Node]:
    """Writes to state, and returns what has nothing to do with it."""
    b.op(ops.cache_write.default, cache, x, rows)
    return [b.op(aten.neg.default, x)]


def test_a_write_to_state_that_nothing_reads_is_kept() -> None:
    """TVM's importer drops writes without a word, and a pass may think that one whose result is not used is dead."""
    leaf = _leaf("w", _writer, CACHE, TensorType("f32", ("T", 2, 4)), ROWS)
    cache, x, rows = torch.zeros(2, 16, 4), torch.randn(3, 2, 4), torch.tensor([5, 6, 9])
    (found,) = Player(lowered(leaf, ISA))(cache, x, rows)
    assert torch.equal(found, -x)
    assert torch.equal(cache[:, rows], x.transpose(0, 1))
    assert cache.count_nonzero() == x.numel()


def test_a_lost_write_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONVERSIONS, ops.cache_write.default, lambda converter, node: None)
    with pytest.raises(BackendError, match="SPECC-E0443"):
        lowered(_leaf("w", _writer, CACHE, TensorType("f32", ("T", 2, 4)), ROWS), ISA)


def test_what_is_not_finite_stays_so() -> None:
    """No fast-math: NaN and infinities are what they are, and reach the logits, where the engine looks for them."""

    def build(b: Builder, x: fx.Node, zero: fx.Node) -> list[fx.Node]:
        return [b.op(aten.sub.Tensor, x, x), b.op(aten.mul.Tensor, x, zero)]

    x = torch.tensor([[1.0, 3.0, 7.5, float("nan"), float("inf"), -0.0, 1e-30, 2.0**-149]])
    type_ = TensorType("f32", ("T", 8))
    ours, wanted = _both(_leaf("r", build, type_, type_), x, torch.zeros(1, 8))
    for a, b in zip(ours, wanted, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        assert a.isnan().sum() == 2


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_multiplied_and_summed_in_f32(dtype: str) -> None:
    """TVM's converters fail on halves or sum in them; a sum of 4096 ones would end at 2048 in f16, at 256 in bf16."""

    def build(b: Builder, x: fx.Node, w: fx.Node) -> list[fx.Node]:
        mean = b.op(aten.mean.dim, x, [-1], True)
        return [b.op(aten.linear.default, x, w), mean, b.op(aten.softmax.int, x, -1)]

    wide = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    x, w = torch.ones(2, 4096, dtype=wide), torch.ones(3, 4096, dtype=wide)
    types = TensorType(dtype, ("T", 4096)), TensorType(dtype, (3, 4096))
    ours, _ = _both(_leaf("h", build, *types), x, w)
    assert torch.equal(ours[0], torch.full((2, 3), 4096.0, dtype=wide))
    assert torch.equal(ours[1], torch.ones(2, 1, dtype=wide))
    assert torch.equal(ours[2], torch.full((2, 4096), 1 / 4096, dtype=wide))


def test_a_token_outside_the_table_fails() -> None:
    def build(b: Builder, tokens: fx.Node, table: fx.Node) -> list[fx.Node]:
        return [b.op(aten.embedding.default, table, tokens)]

    player = Player(lowered(_leaf("e", build, ROWS, TensorType("f32", (4, 8))), ISA))
    table = torch.randn(4, 8)
    assert torch.equal(player(torch.tensor([3, 0]), table)[0], table[[3, 0]])
    for bad in (4, -1):
        with pytest.raises(RuntimeError, match="a token is not in the table"):
            player(torch.tensor([0, bad]), table)
