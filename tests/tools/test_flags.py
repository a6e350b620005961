"""Flags: every one of compile changes the request or is refused (B98)."""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc import flags, methods
from specc.commands.compile_flags import CompileFlags, request_of
from specc.errors import UsageError
from specc.ir import trees
from specc.ir.encodings import ENCODINGS
from specc.judge import QUANTS, ROUNDINGS, check_request
from specc.method_table import AUTO, METHODS
from specc.passes import rounding
from specc.request import CompileRequest, draft_lengths

DEFAULTS: dict[str, Any] = asdict(CompileFlags())

# For every flag: a value that is not the default, and a method for which it has a meaning.
CHANGES: dict[str, tuple[Any, str]] = {
    "method": ("suffix", "suffix"),
    "drafter": ("other", "draft_model"),
    "num_speculative_tokens": ("0,3", "ngram"),
    "tree": ("[(0,), (1,), (0, 0)]", "mtp"),
    "draft_layers": ("0,2", "layerskip"),
    "depths": ("2,3", "eagle:adaptive"),
    "structure_head": (True, "mtp:structure"),
    "draft_vocab_size": (64, "layerskip"),
    "translate_tokens": (True, "draft_model"),
    "host_drafter": ("suffix", "layerskip"),
    "drafter_options": ("prompt_lookup_max=8", "ngram"),
    "calibration": (Path(__file__), "layerskip"),
    "device": ("onnx", "ngram"),
    "backend": ("reference", "ngram"),
    "isa": ("avx2", "ngram"),
    "static": (True, "ngram"),
    "opset": (13, "ngram"),
    "dtype": ("f32", "ngram"),
    "verify_graphs": ("one", "ngram"),
    "kv_shards": ("2", "ngram"),
    "link_gbps": (100.0, "ngram"),
    "quant": ("int8", "ngram"),
    "quant_rounding": ("mse", "ngram"),
    "drafter_quant": ("int8", "draft_model"),
    "kv_cache_dtype": ("f16", "ngram"),
    "kv_arena": ("30:70@1.2G", "draft_model"),
    "max_model_len": (77, "ngram"),
    "max_num_seqs": (2, "ngram"),
    "prefill_chunk": (16, "ngram"),
    "format": ("mlc", "draft_model"),
    "mlc_target": ("android", "draft_model"),
    "force": (True, "ngram"),
}


def request(model: str = "m", output: str = "o", **changes: Any) -> CompileRequest:
    return request_of(model, Path(output), CompileFlags(**changes))


def test_every_flag_is_tried() -> None:
    assert set(CHANGES) == set(DEFAULTS)
    fields = set(CompileRequest.__dataclass_fields__)
    assert fields == set(DEFAULTS) | {"model", "output"}


def test_what_is_not_built_is_refused() -> None:
    with pytest.raises(UsageError, match="SPECC-E0113"):
        request(method="ngram", device="cuda")


@pytest.mark.parametrize("flag", sorted(CHANGES))
def test_every_flag_changes_the_request(flag: str) -> None:
    value, method = CHANGES[flag]
    base: dict[str, Any] = {"method": "ngram" if flag == "method" else method}
    if method == "draft_model":
        base["drafter"] = "first"
    if flag == "quant_rounding":
        base["quant"] = "int4"
    if flag in ("opset", "kv_shards", "link_gbps", "verify_graphs"):
        base["device"] = "onnx"
    if flag == "link_gbps":
        base["kv_shards"] = "2"
    if flag == "mlc_target":
        base["format"] = "mlc"
    changed, before = request(**{**base, flag: value}), request(**base)
    assert getattr(changed, flag) != getattr(before, flag)
    assert changed != before


@pytest.mark.parametrize("method", [AUTO, *METHODS])
@pytest.mark.parametrize("flag", sorted(CHANGES))
def test_a_flag_without_meaning_is_refused(flag: str, method: str) -> None:
    value, _ = CHANGES[flag]
    base: dict[str, Any] = {"method": method}
    if method == "draft_model" and flag != "drafter":
        base["drafter"] = "first"
    try:
        before = CompileRequest("m", Path("o"), method=method)
        changed = request(**{**base, flag: value})
    except UsageError:
        return
    assert getattr(changed, flag) != getattr(before, flag) or flag == "method"


def test_the_model_and_the_output_are_passed_on() -> None:
    made = request("a/b", "here")
    assert (made.model, made.output) == ("a/b", Path("here"))


def test_every_method_has_a_pipeline() -> None:
    assert set(METHODS) == set(methods._PIPELINES)


def test_every_encoding_and_rounding_can_be_asked_for() -> None:
    """`request` imports nothing heavy, so it repeats what others define."""
    assert set(QUANTS) == {"none", "int8", "int4", "keep", *map(str, ENCODINGS)} - {"f32"}
    assert set(ROUNDINGS) == set(rounding.ROUNDINGS)


@pytest.mark.parametrize("method", METHODS)
def test_host_drafters_get_longer_drafts_by_default(method: str) -> None:
    longest = 16 if method in ("ngram", "suffix", "mtp:structure") else 8
    assert max(draft_lengths(CompileRequest("m", Path("a"), method))) == longest
    asked = CompileRequest("m", Path("a"), method, num_speculative_tokens=(3,))
    assert draft_lengths(asked) == (3,)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ngrm"}, {"method": "draft_model"}, {"max_model_len": 1}, {"prefill_chunk": 0},
        {"prefill_chunk": 10**6}, {"num_speculative_tokens": ""}, {"num_speculative_tokens": "-1"},
        {"num_speculative_tokens": "2;4"}, {"num_speculative_tokens": "99"},
        {"method": "none", "num_speculative_tokens": "2"},
        {"method": "ngram", "num_speculative_tokens": "0"},
        {"method": "ngram", "drafter_options": "x"}, {"method": "ngram", "drafter_options": "a=b"},
        {"method": "ngram", "drafter_options": "a=1,a=2"},
        {"method": "ngram", "drafter_options": "a=inf"},
        {"calibration": Path("/nowhere")},
        {"method": "layerskip", "draft_vocab_size": -1}, {"method": "ngram", "draft_vocab_size": 9},
        {"kv_cache_dtype": "fp8"},
        {"quant": "int3"}, {"quant_rounding": "mse"}, {"quant": "keep", "quant_rounding": "mse"},
        {"quant": "int4", "quant_rounding": "up"},
        {"method": "layerskip", "draft_layers": "a"}, {"method": "eagle:adaptive", "depths": "0"},
        {"max_num_seqs": 0}, {"max_num_seqs": 257},
    ],
)  # fmt: skip
def test_absurd_flags(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        request(**change)
    assert caught.value.cure


@pytest.mark.parametrize("typed", ["", "-1", "2;4", "99"])
def test_what_was_typed_is_what_was_found(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(num_speculative_tokens=typed)
    assert caught.value.found == typed


def test_a_method_that_was_nearly_meant() -> None:
    with pytest.raises(UsageError, match="did you mean layerskip"):
        request(method="layer-skip")


@given(st.sets(st.integers(0, 32), min_size=1), st.randoms())
def test_draft_lengths_are_sorted_and_have_zero(ks: set[int], order: Any) -> None:
    shuffled = list(ks | {1})
    order.shuffle(shuffled)
    made = request(method="ngram", num_speculative_tokens=",".join(map(str, shuffled)))
    assert made.num_speculative_tokens == tuple(sorted(ks | {0, 1}))
    check_request(made)


@given(st.dictionaries(st.from_regex("[a-z_]+", fullmatch=True), st.integers(-9, 9), min_size=1))
def test_options_are_read_back(values: dict[str, int]) -> None:
    text = ",".join(f"{n}={v}" for n, v in values.items())
    assert flags.options("--x", text) == values


@given(st.text())
def test_lists_are_read_or_refused(text: str) -> None:
    # Anything else than a UsageError fails the test.
    with contextlib.suppress(UsageError):
        flags.integers("--x", text, 0, 9)
    with contextlib.suppress(UsageError):
        flags.probabilities("--x", text)
    with contextlib.suppress(UsageError):
        flags.options("--x", text)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("24", 24),
        ("[(0,), (1,), (0, 0)]", ((0,), (1,), (0, 0))),
        (" [[0], [0, 1]] ", ((0,), (0, 1))),
        ("((0,),)", ((0,),)),
    ],
)
def test_trees_as_users_write_them(text: str, want: object) -> None:
    assert request(method="mtp", tree=text).tree == want


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "257", "-3", "2.5", "9" * 5000, "[", "[]", "[0]", "[(0.5,)]", "[(True,)]", "[('0',)]", "[(0,), 1]",
        "[(-1,)]",
        "{}", "(0)", "__import__('os').getcwd()", "[" * 500 + "]" * 500, "[(256,)]", str([(i,) for i in range(257)]),
        "[(0,)]" + " " * (1 << 17),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SPECC-E0103"):
        request(method="mtp", tree=text)


def test_trees_of_host_drafters_say_which_k_there_are() -> None:
    for tree, ks, want in (
        ("6", None, (0, 2, 4, 6)),
        ("32", None, (0, 2, 4, 8, 16, 32)),
        ("8", "0,3", (0, 3)),
    ):
        for method in ("ngram", "suffix"):
            asked = request(method=method, tree=tree, num_speculative_tokens=ks)
            check_request(asked)
            assert tuple(sorted({0, *draft_lengths(asked)})) == want


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"tree": "[(0,), (1,)]"}, "SPECC-E0103", "for suffix, a number from 1 to 32"),
        ({"tree": "33"}, "SPECC-E0103", "for suffix, a number from 1 to 32"),
        ({"tree": "4", "num_speculative_tokens": "0,8"}, "SPECC-E0104", "more than the 4 nodes"),
        ({"tree": "4", "device": "onnx"}, "SPECC-E0104", "--device onnx has no --tree"),
        ({"tree": "4", "method": "draft_model", "drafter": "d"}, "SPECC-E0104", "--tree has no meaning"),
        ({"method": "mtp:structure", "device": "cuda:sm_90"}, "SPECC-E0104", "cannot run --method mtp:structure"),
        ({"method": "mtp:structure", "device": "onnx"}, "SPECC-E0104", "cannot run --method mtp:structure"),
        ({"method": "mtp:structure", "host_drafter": "suffix"}, "SPECC-E0104", "--host-drafter has no meaning"),
        ({"method": "suffix", "structure_head": True}, "SPECC-E0104", "--structure-head has no meaning"),
        ({"method": "mtp:structure", "draft_vocab_size": 9}, "SPECC-E0104", "--draft-vocab-size has no meaning"),
        ({"method": "layerskip", "translate_tokens": True}, "SPECC-E0104", "--translate-tokens has no meaning"),
        (
            {"method": "draft_model", "drafter": "d", "translate_tokens": True, "draft_vocab_size": 9},
            "SPECC-E0104", "--draft-vocab-size would choose others",
        ),
        (
            {"method": "draft_model", "drafter": "d", "translate_tokens": True, "format": "mlc"},
            "SPECC-E0104", "--translate-tokens has no such value with --format mlc",
        ),
    ],
)  # fmt: skip
def test_what_a_method_does_not_have_is_refused(
    changes: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_request(request(**{"method": "suffix", **changes}))
    assert caught.value.code == code
    assert says in str(caught.value)


@pytest.mark.parametrize("quant", ["int8", "bf16"])
def test_what_is_offered_instead_is_what_device_and_backend_have(quant: str) -> None:
    with pytest.raises(UsageError, match="SPECC-E0104") as caught:
        request(method="ngram", backend="tvm", device="cuda:sm_90", quant=quant)
    assert caught.value.expected == "--quant none"


def test_flags_and_trees_have_one_limit() -> None:
    assert flags.MOST_NODES == trees.MOST_NODES


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("cuda", "cpu"), ("onnx", "cpu"), ("tvm", "onnx"), ("inductor", "onnx"), ("reference", "cuda:sm_90"),
        ("inductor", "cuda:sm_90"), ("onnx", "cuda:sm_90"), ("cuda", "ascend:Ascend910B3"),
    ],
)  # fmt: skip
def test_a_backend_is_for_its_devices(backend: str, device: str) -> None:
    with pytest.raises(UsageError, match=f"--backend {backend} is not for --device {device}"):
        request(method="ngram", backend=backend, device=device)


@pytest.mark.parametrize(
    "where",
    [
        {"backend": "reference"}, {"device": "onnx"}, {"device": "ascend:Ascend910B3"},
        {"format": "mlc", "method": "draft_model", "drafter": "d"},
        {"method": "medusa", "drafter": "d", "tree": "4"},
    ],
)  # fmt: skip
def test_batches_are_played_by_the_engine_over_compiled_leaves(where: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"several texts at once|max-num-seqs"):
        request(max_num_seqs=2, **{"method": "none", **where})


@pytest.mark.parametrize("where", [{"backend": "reference"}, {"device": "onnx"}])
def test_archives_are_of_code_alone(where: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--static"):
        request(static=True, method="ngram", **where)


@pytest.mark.parametrize(
    "where",
    [
        {"method": "auto"}, {"backend": "tvm"}, {"backend": "reference"}, {"device": "onnx"}, {"device": "cuda:sm_90"},
        {"format": "mlc", "method": "draft_model", "drafter": "d"},
    ],
)  # fmt: skip
def test_code_for_arm_is_inductors_and_measures_nothing_here(where: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--isa"):
        request(isa="neon", **{"method": "ngram", **where})
