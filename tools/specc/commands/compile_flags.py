"""The flags of `specc compile` and of those verbs that share them, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from specc import flags
from specc.flags import Isa, Switch
from specc.judge import check_request
from specc.request import MOST_DRAFTS, CompileRequest

_METHOD = Parameter(group=Group.create_ordered("Method"))
_ARTIFACT = Parameter(group=Group.create_ordered("Artifact"))
OUTPUT = Group.create_ordered("Output")
_OUTPUT = Parameter(group=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class RewriteFlags:
    """What passes are told.

    Args:
        method: auto, none, ngram, suffix, mtp:structure, draft_model, layerskip or eagle:adaptive; or, with a
            checkpoint trained for MODEL, eagle, eagle3, mtp, dflash, dspark or medusa. auto measures on this
            machine and says why it chose.
        drafter: Model that drafts, for draft_model (the same tokenizer as MODEL, or --translate-tokens); or the folder
            or hub id of a trained drafter. mtp without it takes the layer in MODEL's own files; auto measures it too.
        num_speculative_tokens: The K to compile, as in 0,2,4,8, at most 32; 0 is always added. Left
            out, 0,2,4,8, and 16 for ngram, suffix and mtp:structure.
        tree: Tokens of each round that a trained drafter's drafts fill as a tree, K deep: as many of the likeliest, as
            in 24; or, of medusa, dflash and dspark, paths of ranks, as in "[(0,), (1,), (0, 0)]". For ngram, suffix and
            mtp:structure, the K drafts of a round are a tree of K nodes, and this is the largest K.
        draft_layers: Layers that layerskip drafts with, as in 0,1,27; left out, calibrated.
        depths: Depths that eagle:adaptive may draft with, as in 2,4,7.
        structure_head: Train two layers for mtp:structure on the calibration text, which tell places apart better than
            the fitted vectors do, or are refused.
        draft_vocab_size: Tokens that draft_model, layerskip and eagle:adaptive may propose, the most
            frequent in the calibration text; 0 is all.
        translate_tokens: Take a draft_model with another tokenizer: it proposes only tokens that both know, and what it
            has no token for it reads as something near.
        host_drafter: ngram or suffix, beside a method that drafts in the graph: drafts that it finds in the text
            take the place of the drafter's where that pays.
        drafter_options: Of ngram, suffix and mtp:structure, as in prompt_lookup_max=4,prompt_lookup_min=2.
        calibration: Text that layerskip, eagle:adaptive, mtp:structure and a draft vocabulary are measured on; left
            out, specc's own.
        device: cpu; cuda:ARCH, as in cuda:sm_90: for an NVIDIA GPU, compiled without one; onnx: whole graphs as ONNX
            models, run by onnxruntime; or ascend:SOC, as in ascend:Ascend910B3: the same, compiled by CANN's
            atc where it is installed.
        kv_shards: Devices that the target's caches lie on, as in 4: each holds some heads of keys, or rows:4 some
            positions; left without a word, the way that moves fewer bytes. For onnx they are all this machine.
        verify_graphs: In ONNX models one for every K, so that drafts make no difference to a bit, at the price of plain
            decoding on as many rows as verifying; or each, a graph for each K; auto is one for
            ascend and where --dtype is f16.
        dtype: Of matrices and of what they are multiplied with: on a GPU f32, f16 or bf16, where auto is what the
            model's file has; in ONNX models f32, or f16 where asked for. Norms, softmax and logits are f32.
        quant: Weights' form: none is float32; int8; int4 (embedding and head in 8 bits); keep, a GGUF's own blocks
            of Q4_0, Q4_1 or Q8_0; bf16; or an encoding such as q4g64 or q4mg128.
        quant_rounding: nearest, or mse: scales of least squared error.
        drafter_quant: Form of the weights of a trained drafter or a draft_model: auto is as --quant has it; or any that
            --quant knows but keep. Fewer bits make drafts cheaper, and a little worse; the text stays the target's.
        kv_cache_dtype: f32, f16 or bf16; auto is f16 where weights have 8 or fewer bits, else f32; as --dtype
            where that is not f32.
        kv_arena: How one allocation is split between drafter and target: auto, by what they need; 30:70; or
            30:70,20:80, the second for texts over 7,200 tokens; with @SIZE, as in 30:70@1.2G, of so many bytes.
        max_model_len: Most tokens of a text; left out, it follows from the model.
        max_num_seqs: Texts that caches are laid out for, 1 to 256: one pass of the model then verifies the drafts of
            all of them.
        prefill_chunk: Prompt tokens of one call, 1 to 512.
    """

    method: Annotated[str, _METHOD] = "auto"
    drafter: Annotated[str | None, _METHOD] = None
    num_speculative_tokens: Annotated[str | None, _METHOD] = None
    tree: Annotated[str | None, _METHOD] = None
    draft_layers: Annotated[str | None, _METHOD] = None
    depths: Annotated[str | None, _METHOD] = None
    structure_head: Annotated[Switch, _METHOD] = False
    draft_vocab_size: Annotated[int, _METHOD] = 0
    translate_tokens: Annotated[Switch, _METHOD] = False
    host_drafter: Annotated[str | None, _METHOD] = None
    drafter_options: Annotated[str | None, _METHOD] = None
    calibration: Annotated[Path | None, _METHOD] = None
    device: Annotated[str, _ARTIFACT] = "cpu"
    kv_shards: Annotated[str | None, _ARTIFACT] = None
    verify_graphs: Annotated[str, _ARTIFACT] = "auto"
    dtype: Annotated[str, _ARTIFACT] = "auto"
    quant: Annotated[str, _ARTIFACT] = "none"
    quant_rounding: Annotated[str, _ARTIFACT] = "nearest"
    drafter_quant: Annotated[str, _ARTIFACT] = "auto"
    kv_cache_dtype: Annotated[str, _ARTIFACT] = "auto"
    kv_arena: Annotated[str, _ARTIFACT] = "auto"
    max_model_len: Annotated[int | None, _ARTIFACT] = None
    max_num_seqs: Annotated[int, _ARTIFACT] = 1
    prefill_chunk: Annotated[int, _ARTIFACT] = 64


@dataclass(frozen=True, kw_only=True)
class CompileFlags(RewriteFlags):
    """And what backends are told.

    Args:
        backend: Who generates the code. For CPUs: inductor, if left out; tvm: TVM's Relax and kernels in TIR; or
            reference: plain torch, slow, to find whose fault is a fault. For GPUs: Inductor and Triton, if left out; or
            tvm, with nvcc. Other devices have one each.
        isa: CPU instructions that the code may use: native takes this machine's, avx2 and avx512 are of x86-64, neon of
            64-bit ARM, whose code a cross compiler makes.
        static: Write lib/libspecc.a and lib/libmodel.a too, to link an app that loads no code at run time.
        opset: Of ONNX models, 11 to 18; left out, 15.
        link_gbps: Gigabits a second that a device receives of the others: `inspect` then says how long exchanges take.
        format: specc; or mlc: model folders, libraries and engine.json for MLC's engine and apps, through TVM.
        mlc_target: Where --format mlc runs: host, a .so for this machine; iphone or android, static libraries of
            arm64 CPU code for system://.
        force: Replace an artifact that is there.
    """

    backend: Annotated[str | None, _ARTIFACT] = None
    isa: Annotated[Isa, _ARTIFACT] = "native"
    static: Annotated[Switch, _ARTIFACT] = False
    opset: Annotated[int, _ARTIFACT] = 0
    link_gbps: Annotated[float, _ARTIFACT] = 0
    format: Annotated[str, _OUTPUT] = "specc"
    mlc_target: Annotated[str, _OUTPUT] = "host"
    force: Annotated[Switch, _OUTPUT] = False


@dataclass(frozen=True, kw_only=True)
class OptFlags(RewriteFlags):
    """Compile's, but that nothing is measured to choose a method."""

    method: str = "ngram"


def request_of(model: str, output: Path, given: RewriteFlags) -> CompileRequest:
    """The request, or a UsageError."""
    values: dict[str, Any] = {}
    for field in fields(given):
        value = getattr(given, field.name)
        if value is not None and field.name in _READERS:
            value = _READERS[field.name]("--" + field.name.replace("_", "-"), value)
        if value is not None:  # what nobody gave is the request's to choose
            values[field.name] = value
    request = CompileRequest(model, output, **values)
    check_request(request)
    return request


def _numbers(least: int, most: int, *always: int) -> Callable[[str, str], object]:
    return lambda flag, text: tuple(sorted({*always, *flags.number_set(flag, text, least, most)}))


_READERS: Mapping[str, Callable[[str, str], object]] = {
    "num_speculative_tokens": _numbers(0, MOST_DRAFTS, 0),
    "tree": flags.tree,
    "draft_layers": _numbers(0, 4095),
    "depths": _numbers(1, 4095),
    "drafter_options": flags.options,
    "kv_shards": flags.shards,
}
"""How the text of a flag becomes a value of the request, where it is not one already."""
