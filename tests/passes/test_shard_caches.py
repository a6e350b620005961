# ruff: noqa: E501 (programs as they print)
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.importers.huggingface import import_model
from specc.ir.sharding import Sharding, Way
from specc.passes import Pass, pipelines
from specc.passes.delta_caches import DeltaCaches
from specc.passes.fix_rows import FixRows
from specc.passes.halve_products import HalveProducts
from specc.passes.merge_leaves import MergeLeaves
from specc.passes.pack_caches import PackCaches
from specc.passes.shard_caches import ShardCaches
from specc.passes.shard_costs import Sizes, choose, costs
from tests.ir.importers.tiny_models import FAMILIES, eager_logits, tiny
from tests.passes import ranks, toy
from tests.passes.driver import Run, generate

PROMPT = [3, 1, 4, 1, 5, 0, 2]
OPTIONS: dict[str, Any] = {"count": 6, "ks": [2, 0], "chunk": 3}


def packed(
    program: SpeculativeProgram | None = None, method: str = "ngram", *, half: bool = False,
    written_out: bool = False,
) -> SpeculativeProgram:  # fmt: skip
    program = toy.after("fuse-round", program, method)
    passes: list[Pass] = [MergeLeaves(), FixRows(), DeltaCaches(written_out), PackCaches(kinds_apart=True)]  # fmt: skip
    for pass_ in [*passes[:2], *([HalveProducts()] if half else []), *passes[2:]]:
        program = pass_(program).program
    return program


def verify_logits(program: SpeculativeProgram, run: Run = evaluate) -> torch.Tensor:
    """Of two calls of verify_2, one after the other, on caches that hold anything."""
    state = fresh_state(program)
    for buffer in state.values():
        buffer.fill_(1e3)
    found = []
    for begin in (0, 3):
        at = torch.arange(begin, begin + 3)
        found += run(program, "verify_2", [torch.tensor(PROMPT)[at], at, at], state)
    return torch.cat(found)


def test_a_graph_ends_where_devices_exchange() -> None:
    program = packed(toy.decoder(layers=1))
    toy.assert_twice_is_once(ShardCaches(2), program)
    sharded = ShardCaches(2)(program).program
    assert_expected_inline(
        toy.text(program, "verify_2"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = specc.masks(%positions, %rows, None, None, 0, 16) : (f32[3, 16], f32[3, 3])
  %1 = %0[0] : f32[3, 16]
  %2 = %0[1] : f32[3, 3]
  %3 = call verify_2.graph {graph}(%tokens, %positions, @table.0, @wte, $target.rows, @w0, @head, %1, %2) : (f32[3, 6], f32[3, 1, 8])
  %4 = %3[0] : f32[3, 6]
  %5 = %3[1] : f32[3, 1, 8]
  specc.cache_write($target.rows, %5, %rows)
  return logits=%4
""",
    )
    assert_expected_inline(
        toy.text(sharded, "verify_2"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call verify_2.part_0 {graph}(@table.0, %positions, %tokens, @wte, @w0) : (f32[1, 3, 4], f32[3, 1, 4], f32[3, 1, 4], f32[3, 1, 4], f32[3, 1, 8])
  %1 = %0[0] : f32[1, 3, 4]
  %2 = %0[1] : f32[3, 1, 4]
  %3 = %0[2] : f32[3, 1, 4]
  %4 = %0[3] : f32[3, 1, 4]
  %5 = %0[4] : f32[3, 1, 8]
  %6 = specc.masks(%positions, %rows, None, None, 0, 8, 0) : (f32[3, 8], f32[3, 3])
  %7 = %6[0] : f32[3, 8]
  %8 = %6[1] : f32[3, 3]
  %9 = call verify_2.attend_0 {graph}(%4, %2, %3, $target.shard_0.rows, %7, %8) : (f32[1, 1, 3, 6])
  %10 = %9[0] : f32[1, 1, 3, 6]
  %11 = specc.masks(%positions, %rows, None, None, 0, 8, 8) : (f32[3, 8], f32[3, 3])
  %12 = %11[0] : f32[3, 8]
  %13 = %11[1] : f32[3, 3]
  %14 = call verify_2.attend_0 {graph}(%4, %2, %3, $target.shard_1.rows, %12, %13) : (f32[1, 1, 3, 6])
  %15 = %14[0] : f32[1, 1, 3, 6]
  %16 = call verify_2.part_1 {graph}(%1, @head, %10, %15) : (f32[3, 6])
  %17 = %16[0] : f32[3, 6]
  specc.cache_write_shard($target.shard_0.rows, %5, %rows, 0)
  specc.cache_write_shard($target.shard_1.rows, %5, %rows, 8)
  return logits=%17
""",
    )
    assert_expected_inline(
        str(sharded).split("round")[0],
        """\
program toy S=16 chunk=8
model toy vocab=6 hidden=4 layers=1 positions=16 eos=[]
drafter ngram K=[0, 2] on the host prompt_lookup_max=4 prompt_lookup_min=2
shards 2 by rows
state $target.shard_0.rows: f32[1, 8, 8] (target kv_cache, zone target.shard_0)
state $target.shard_1.rows: f32[1, 8, 8] (target kv_cache, zone target.shard_1)
weight @head: f32[6, 4]
weight @table.0: f32[16, 4]
weight @w0: f32[4, 4]
weight @wte: f32[6, 4]
""",
    )


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("method", ["ngram", "draft_model", "layerskip", "eagle3"])
@pytest.mark.parametrize("first_row", [0, 5])
def test_rounds_say_the_same(method: str, count: int, first_row: int) -> None:
    """A shard's rows that nobody wrote hold anything but NaN, and so do those of rejected drafts."""
    whole = packed(method=method, written_out=True)
    sharded = ShardCaches(count)(packed(method=method)).program
    want = generate(whole, PROMPT[:5], **OPTIONS, first_row=first_row, poison=1e3)
    assert generate(sharded, PROMPT[:5], **OPTIONS, first_row=first_row, poison=1e3) == want
    held = {n: b.bytes for n, b in sharded.state.items() if ".shard_" in n}
    target = sum(b.bytes for n, b in whole.state.items() if n.startswith("target"))
    assert sum(held.values()) == target
    assert {ranks.shard_of(n) for n in held} == set(range(count))


@pytest.mark.parametrize("windows", [(), (2, 0), (1, 3)])
@pytest.mark.parametrize("count", [2, 4])
def test_logits_are_those_of_one_device(count: int, windows: tuple[int, ...]) -> None:
    model = toy.decoder(windows=windows)
    sharded = ShardCaches(count)(packed(model)).program
    want = verify_logits(packed(model, written_out=True))
    torch.testing.assert_close(verify_logits(sharded), want, rtol=0, atol=1e-5)


def test_halves_are_merged_in_single_precision() -> None:
    sharded = ShardCaches(2)(packed(half=True)).program
    want = verify_logits(packed(half=True, written_out=True))
    torch.testing.assert_close(verify_logits(sharded), want, rtol=0, atol=2e-2)
    part = sharded.functions["verify_2.attend_0"]
    assert [str(n.meta["type"]) for n in part.inputs[:1]] == ["f16[3, 1, 4]"]
    call = next(n for n in sharded.functions["verify_2"].graph.nodes if n.target == part.name)
    assert str(call.meta["type"][0]) == "f32[1, 1, 3, 6]"


@pytest.mark.parametrize(("family", "asked", "way"), [
    ("qwen3", 2, Way.HEADS), ("gpt2", 4, Way.HEADS), ("gpt-oss-sinks", 2, Way.HEADS),
    ("llama-mqa-bias-tied", 2, Way.ROWS), ("gpt-oss-sinks", 4, Way.ROWS), ("gemma2", 4, Way.ROWS),
])  # fmt: skip
def test_models_say_what_transformers_says(family: str, asked: int, way: Way) -> None:
    """Grouped heads, sinks, windows, caps on scores; heads where they divide, since they move fewer bytes."""
    kind, values = FAMILIES[family]
    model = tiny(kind, **values)
    text = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3, 2]
    want = list(text)
    for _ in range(4):
        want.append(int(eager_logits(model, torch.tensor(want))[-1].argmax()))
    shape = pipelines.Shape((0, 2), 32, 8)
    pipeline = pipelines.as_graphs(pipelines.host("ngram", shape, {}), shards=ShardCaches(asked))
    program = pipeline(import_model(model, family))
    assert program.sharding is not None
    assert program.sharding.way is way
    right = lambda x, k: (want[len(x) :] + [0] * k)[:k]  # noqa: E731
    tokens, rounds = generate(program, text, 4, [2, 0], drafts=right, poison=1e3)
    assert tokens == want[len(text) :]
    assert rounds[0] == (2, 2)


def _said(program: SpeculativeProgram) -> Any:
    run = ranks.evaluate_here
    tokens, rounds = generate(program, PROMPT[:5], **OPTIONS, poison=1e3, run=run)
    return [tokens, rounds, verify_logits(program, run).tolist()]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_processes_that_hold_a_shard_each_agree(method: str, count: int, tmp_path: Path) -> None:
    """By `torch.distributed` with gloo: every process comes to the tokens, rounds and logits of one device."""
    sharded = ShardCaches(count)(packed(method=method)).program
    whole = packed(method=method, written_out=True)
    want, rounds = generate(whole, PROMPT[:5], **OPTIONS, poison=1e3)
    for tokens, accepted, logits in ranks.on_ranks(sharded, _said, tmp_path):
        assert tokens == want
        assert accepted == [list(r) for r in rounds]
        torch.testing.assert_close(torch.tensor(logits), verify_logits(whole), rtol=0, atol=1e-5)


def test_costs() -> None:
    """By hand: 12 query heads on 4 of the cache, 1024 rows, 64 wide, f16, two layers, two devices."""
    layer = Sizes(heads=12, shared=4, length=1024, width=64, deep=64, element=2)
    rows, heads = costs([layer, layer], 2)
    assert (rows.way, rows.exchanges, rows.bytes_received) == (Way.ROWS, 2, 2 * 12 * 66 * 4)
    assert (heads.way, heads.bytes_received) == (Way.HEADS, 2 * 6 * 66 * 4)
    assert rows.cache_bytes == heads.cache_bytes == 2 * 1024 * 4 * 128 * 2 // 2
    assert rows.multiply_adds == 2 * 12 * 513 * 128
    assert heads.multiply_adds == 2 * 6 * 1025 * 128
    assert rows.link_microseconds(100) == pytest.approx(2 * 12 * 66 * 4 * 8 / 1e5)
    assert choose([layer], 2, None).way is Way.HEADS
    assert choose([layer], 8, None) == Sharding(8, Way.ROWS, costs([layer], 8))
    assert costs([layer], 8)[1].refused == "4 heads of keys are no multiple of 8"


@pytest.mark.parametrize(("pass_", "text"), [
    (ShardCaches(3), "SPECC-E0373 shard-caches: the caches cannot lie on 3 devices"),
    (ShardCaches(2, Way.HEADS), "SPECC-E0373 shard-caches: the caches cannot lie on 2 devices"),
    (ShardCaches(1), "SPECC-E0373 shard-caches: 1 shards share nothing"),
])  # fmt: skip
def test_refuses(pass_: Pass, text: str) -> None:
    assert toy.refusal(pass_, packed()) == text


def test_refuses_what_ran_before() -> None:
    once = ShardCaches(2)(packed()).program
    assert toy.refusal(ShardCaches(4), once).startswith("SPECC-E0334 shard-caches")
    written = packed(written_out=True)
    assert toy.refusal(ShardCaches(2), written).startswith("SPECC-E0330 shard-caches: no attention")
    alone = DeltaCaches(written_out=False)(FixRows()(MergeLeaves()(toy.after("fuse-round")).program).program).program  # fmt: skip
    assert toy.refusal(ShardCaches(2), alone).endswith("$target.k.0 is alone")


def test_refuses_another_reader_of_the_caches() -> None:
    program = packed(toy.decoder(layers=1))
    leaf = program.functions["verify_2.graph"]
    (attention,) = (n for n in leaf.graph.nodes if n.target is ops.masked_attention.default)
    with leaf.graph.inserting_after(attention):
        more = leaf.graph.call_function(torch.ops.aten.sum.dim_IntList, (attention.args[1], [0, 1, 2]))  # fmt: skip
    with leaf.graph.inserting_after(more):
        both = leaf.graph.call_function(torch.ops.aten.add.Tensor, (attention, more))
    attention.replace_all_uses_with(both)
    both.args = (attention, more)
    more.meta["type"] = replace(attention.meta["type"], shape=())
    both.meta["type"] = attention.meta["type"]
    assert toy.refusal(ShardCaches(2), program).startswith(
        "SPECC-E0374 shard-caches: verify_2 reads"
    )
