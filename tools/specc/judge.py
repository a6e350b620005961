"""The one place that judges what the user asks the compiler for. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specc import flags, servers, trained
from specc.device_names import ASCEND, CUDA, ONNX, check_device_name, kind_of
from specc.method_table import (
    AUTO,
    CALIBRATED,
    METHODS,
    MLC_METHODS,
    ON_HOST,
    STRUCTURE,
    TABLE,
    TRAINED,
    Drafts,
    by,
    running_on,
)
from specc.request import (
    BACKENDS,
    ISAS,
    MLC,
    MLC_K,
    MOST_DRAFTS,
    OF_X86,
    REFERENCE,
    TVM,
    CompileRequest,
    backend_of,
    most_nodes,
)

KV_CACHE_DTYPES = ("auto", "f32", "f16", "bf16")
DTYPES = KV_CACHE_DTYPES
QUANTS = (
    "none", "int8", "int4", "keep", "bf16", "q8", "q8g32", "q4g32", "q4g64", "q4g128", "q4mg32", "q4mg64", "q4mg128",
)  # fmt: skip
"""Forms of weights: three of specc's choosing, the file's own, and encodings by name (ir/encodings.py)."""

DRAFTER_QUANTS = ("auto", *(q for q in QUANTS if q != "keep"))
"""The same for a drafter; `auto` is as --quant has it."""

ROUNDINGS = ("nearest", "mse")
FORMATS = ("specc", MLC)
VERIFY_GRAPHS = ("auto", "one", "each")
MLC_TARGETS = ("host", "iphone", "android")
TVM_QUANTS = ("none", "bf16")
"""Forms of weights that the tvm backend multiplies."""

OPSETS = (11, 18)
MOST_CHUNK = 512
MOST_TEXTS = 256
BESIDE_A_GRAPH = ("ngram", "suffix")
"""Drafters on the host that can stand beside one in the graph."""

_IN_THE_GRAPH = by(Drafts.GRAPH)


def check_request(request: CompileRequest) -> None:
    """Raise UsageError for what no model could make right. A flag without effect is refused, never dropped."""
    flags.one_of("--method", request.method, (AUTO, *METHODS))
    flags.one_of("--isa", request.isa, ("native", *ISAS))
    flags.one_of("--quant", request.quant, QUANTS)
    flags.one_of("--quant-rounding", request.quant_rounding, ROUNDINGS)
    flags.one_of("--drafter-quant", request.drafter_quant, DRAFTER_QUANTS)
    flags.one_of("--kv-cache-dtype", request.kv_cache_dtype, KV_CACHE_DTYPES)
    flags.one_of("--dtype", request.dtype, DTYPES)
    flags.one_of("--verify-graphs", request.verify_graphs, VERIFY_GRAPHS)
    flags.arena("--kv-arena", request.kv_arena)
    _check_format(request)
    _check_device(request)
    _check_shards(request)
    if request.quant_rounding != "nearest" and request.quant in ("none", "keep", "bf16"):
        raise flags.conflict(
            f"--quant-rounding has no meaning for --quant {request.quant}", "leave it out, or add --quant int4"
        )  # fmt: skip
    flags.at_least("--max-model-len", request.max_model_len, 2)
    if not 1 <= request.prefill_chunk <= MOST_CHUNK:
        raise flags.bad_value("--prefill-chunk", f"1 to {MOST_CHUNK}", request.prefill_chunk)
    _check_texts(request)
    _only_for("--drafter", request.drafter, request, AUTO, *TRAINED, "draft_model")
    _only_for("--draft-layers", request.draft_layers, request, "layerskip")
    drafter_quant = request.drafter_quant if request.drafter_quant != "auto" else None
    _only_for("--drafter-quant", drafter_quant, request, *TRAINED, "draft_model")
    _check_tree(request)
    _only_for("--depths", request.depths, request, "eagle:adaptive")
    _only_for("--structure-head", request.structure_head or None, request, STRUCTURE)
    _check_host_drafter(request)
    flags.at_least("--draft-vocab-size", request.draft_vocab_size, 0)
    _only_for("--draft-vocab-size", request.draft_vocab_size or None, request, *_IN_THE_GRAPH)
    _only_for("--translate-tokens", request.translate_tokens or None, request, "draft_model")
    if request.translate_tokens and request.draft_vocab_size:
        raise flags.conflict(
            "--translate-tokens leaves the drafter what both know, and --draft-vocab-size would choose others",
            "leave one of them out",
        )  # fmt: skip
    measured = _IN_THE_GRAPH if request.draft_vocab_size else CALIBRATED
    _only_for("--calibration", request.calibration, request, *measured)
    if request.method == "draft_model" and request.drafter is None:
        raise flags.conflict("draft_model needs a model that drafts", "add --drafter MODEL")
    # (An MTP layer is looked for in the model's own files, a drafter that specc brings when the model is known.)
    alone = request.method in set(TRAINED) - {"mtp"} and request.drafter is None
    if alone and not trained.may_be_shipped(request.model, request.method):
        raise trained.missing(request.model, request.method)
    if request.calibration is not None and not request.calibration.is_file():
        raise flags.bad_value("--calibration", "a text file", request.calibration)
    _check_lengths(request)


def _check_texts(request: CompileRequest) -> None:
    """Several texts in one pass: of methods whose rounds come in pieces, on CPUs."""
    if not 1 <= request.max_num_seqs <= MOST_TEXTS:
        raise flags.bad_value("--max-num-seqs", f"1 to {MOST_TEXTS}", request.max_num_seqs)
    if request.max_num_seqs > 1 and request.tree is not None and request.method in TRAINED:
        raise flags.conflict(
            "drafts that the graph hangs into a --tree cannot be verified for several texts at once yet",
            "leave out --tree, or --max-num-seqs",
        )  # fmt: skip


def _check_tree(request: CompileRequest) -> None:
    """Trees of trained drafters fit or do not, which passes know; those of drafters on the host are judged here."""
    _only_for("--tree", request.tree, request, *ON_HOST, *TRAINED)
    if request.method not in ON_HOST or request.tree is None:
        return
    most = most_nodes(request)
    if most is None or most > MOST_DRAFTS:
        # What is found in a text has no places that could be named.
        found = "paths" if most is None else most
        raise flags.bad_value(
            "--tree", f"for {request.method}, a number from 1 to {MOST_DRAFTS}", found
        )
    if (longest := max(request.num_speculative_tokens or (0,))) > most:
        raise flags.conflict(
            f"--num-speculative-tokens {longest} is more than the {most} nodes of --tree", "choose a larger --tree"
        )  # fmt: skip


def _check_format(request: CompileRequest) -> None:
    """What MLC's engine cannot play is refused by name; see docs/mlc.md."""
    flags.one_of("--format", request.format, FORMATS)
    flags.one_of("--mlc-target", request.mlc_target, MLC_TARGETS)
    if request.format != MLC:
        if request.mlc_target != "host":
            raise flags.conflict(
                f"--mlc-target has no meaning for --format {request.format}", "add --format mlc"
            )
        return
    expected = f"--method {', '.join(MLC_METHODS)}"
    if request.method == AUTO:
        raise flags.conflict(
            "--format mlc measures nothing: it is MLC's engine that plays", "name one with --method", expected=expected
        )  # fmt: skip
    if request.method not in MLC_METHODS:
        raise flags.refused_by_mlc(
            f"MLC's engine cannot express --method {request.method}", expected=expected,
            found=TABLE[request.method].not_in_mlc,
        )  # fmt: skip
    _check_mlc_limits(f"--format {MLC}", request, _MLC)
    if request.mlc_target != "host":
        _check_mlc_limits(f"--mlc-target {request.mlc_target}", request, {"isa": ("native",)})
    _check_mlc_length(request)


def _check_mlc_limits(where: str, request: CompileRequest, limits: Limits) -> None:
    for name, _, _ in _outside(request, limits):
        flag = _flag(name)
        raise flags.conflict(
            f"{flag} has no such value with {where}", f"leave out {flag}",
            expected=f"--quant {' or '.join(TVM_QUANTS)}" if flag == "--quant" else f"no {flag}",
        )  # fmt: skip


def _check_mlc_length(request: CompileRequest) -> None:
    drafts = [k for k in request.num_speculative_tokens or (MLC_K,) if k]
    if request.method == "none":
        return
    if len(drafts) > 1:
        raise flags.bad_value(
            "--num-speculative-tokens", "one number: MLC plays one spec_draft_length",
            ",".join(map(str, drafts)),
        )  # fmt: skip
    if request.prefill_chunk <= max(drafts, default=0):
        raise flags.bad_value(
            "--prefill-chunk", f"{max(drafts) + 1} or more: MLC's engine waits for ever where a round has more rows",
            request.prefill_chunk,
        )  # fmt: skip


def _check_host_drafter(request: CompileRequest) -> None:
    """Beside a drafter in the graph, one that finds drafts in the text; and the options of either way to have one."""
    if request.host_drafter is not None:
        flags.one_of("--host-drafter", request.host_drafter, BESIDE_A_GRAPH)
        _only_for("--host-drafter", request.host_drafter, request, *_IN_THE_GRAPH, *TRAINED)
        for flag, other in (
            ("--device", request.device != "cpu"),
            ("--tree", request.tree is not None),
        ):
            if other:
                raise flags.conflict(
                    f"{flag} has no rounds for --host-drafter yet", "leave one of them out"
                )
    elif request.drafter_options:
        _only_for("--drafter-options", request.drafter_options, request, *ON_HOST)


def _check_device(request: CompileRequest) -> None:
    """What the device, and the backend for it, cannot do yet."""
    check_device_name(request.device)
    kind, backend = kind_of(request.device), backend_of(request)
    # (A backend that is none of specc's judges for itself.)
    if kind not in BACKENDS.get(backend, (kind,)):
        raise flags.conflict(
            f"--backend {backend} is not for --device {request.device}", "leave out --backend",
            expected=f"--device {' or '.join(BACKENDS[backend])}",
        )  # fmt: skip
    here = f"--device {request.device}"
    known = running_on(kind)
    if request.method not in known and (request.method, kind) != (AUTO, "cpu"):
        raise flags.conflict(
            f"{here} cannot run --method {request.method}", "choose another --method",
            expected=f"--method {', '.join(known)}",
        )  # fmt: skip
    least, most = OPSETS
    if request.opset and kind in (ONNX, ASCEND) and not least <= request.opset <= most:
        raise flags.bad_value("--opset", f"{least} to {most}, which CANN reads", request.opset)
    limits = {here: _DEVICES[kind], f"--backend {backend}": _BACKENDS.get(backend, {})}
    if (kind, backend) == (CUDA, TVM):
        limits[f"{here} --backend {backend}"] = {"tree": (None,)}
    _check_limits(limits, request)
    if request.method == AUTO and request.isa not in OF_X86:
        raise flags.conflict(
            f"--method auto measures on this machine, which runs no code for --isa {request.isa}",
            "name one with --method",
        )  # fmt: skip


Limits = Mapping[str, tuple[object, ...]]
"""The values of a flag that there are, usual one first; of flags that are not named, all."""

_PLAIN: Limits = {
    "isa": OF_X86,
    "quant": ("none",),
    "drafter_quant": ("auto",),
    "tree": (None,),
    "static": (False,),
    "max_num_seqs": (1,),
}
_GRAPHS: Limits = {
    **_PLAIN,
    "dtype": ("auto", "f32", "f16"),
    "kv_cache_dtype": ("auto", "f32", "f16"),
}
_DEVICES: Mapping[str, Limits] = {
    "cpu": {"dtype": ("auto", "f32"), "opset": (0,), "verify_graphs": ("auto",)},
    CUDA: {
        "isa": OF_X86, "static": (False,), "max_num_seqs": (1,), "quant": tuple(q for q in QUANTS if q != "bf16"),
        "drafter_quant": ("auto",), "opset": (0,), "verify_graphs": ("auto",),
    },
    ONNX: _GRAPHS,
    ASCEND: _GRAPHS,
}  # fmt: skip
_MLC: Limits = {
    "device": ("cpu",), "backend": (None, TVM), "tree": (None,), "host_drafter": (None,), "drafter_options": ({},),
    "quant": TVM_QUANTS, "drafter_quant": ("auto",), "kv_cache_dtype": ("auto", "f32"), "kv_arena": ("auto",),
    "draft_vocab_size": (0,), "translate_tokens": (False,), "static": (False,), "max_num_seqs": (1,), "isa": OF_X86,
}  # fmt: skip
_BACKENDS: Mapping[str, Limits] = {
    TVM: {"isa": OF_X86, "quant": TVM_QUANTS, "drafter_quant": ("auto", *TVM_QUANTS)},
    REFERENCE: {"isa": OF_X86, "static": (False,), "max_num_seqs": (1,)},
}  # fmt: skip


def _outside(
    request: CompileRequest, limits: Limits
) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    """Names of flags with a value that is not among those that there are, and both."""
    for name, known in limits.items():
        if (value := getattr(request, name)) not in known:
            yield name, value, known


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_limits(of: Mapping[str, Limits], request: CompileRequest) -> None:
    """Each of the limits `of` what they are of; what one of them allows is offered if all do."""
    for where, limits in of.items():
        for name, value, known in _outside(request, limits):
            flag = _flag(name)
            by_all = (
                k for k in known if k and all(k in other.get(name, known) for other in of.values())
            )
            offered = " or ".join(map(str, by_all))
            raise flags.conflict(
                f"{where} has no {flag} {'' if value is True else value}".rstrip(), f"leave out {flag}",
                expected=f"{flag} {offered}" if offered else "",
            )  # fmt: skip


def _check_shards(request: CompileRequest) -> None:
    """Caches on several devices: of one server, where that is known."""
    kind, _, soc = request.device.partition(":")
    if request.kv_shards is None:
        if request.link_gbps:
            raise flags.conflict(
                "--link-gbps has no meaning for caches on one device", "leave it out, or add --kv-shards"
            )  # fmt: skip
        return
    if kind in ("cpu", CUDA):
        raise flags.conflict(
            f"--kv-shards has no meaning for --device {kind}", "leave it out, or add --device onnx"
        )
    flags.at_least("--link-gbps", request.link_gbps, 0)
    if request.verify_graphs == "one":
        raise flags.conflict(
            "--kv-shards cuts attention where --verify-graphs one would join it",
            "leave one of them out",
        )
    if kind == ASCEND:
        servers.check_one_server(soc, request.kv_shards[0])


def _check_lengths(request: CompileRequest) -> None:
    ks = request.num_speculative_tokens
    if ks is None:
        return
    flag = "--num-speculative-tokens"
    if any(not 0 <= k <= MOST_DRAFTS for k in ks) or len(set(ks)) != len(ks):
        raise flags.bad_value(
            flag, f"distinct numbers from 0 to {MOST_DRAFTS}", ",".join(map(str, ks))
        )
    drafts = any(ks)
    if request.method == "none" and drafts:
        raise flags.conflict("method none drafts nothing", "leave out " + flag)
    if request.method not in ("none", AUTO) and not drafts:
        raise flags.conflict(
            f"{request.method} with K=0 alone never drafts", "choose --method none"
        )


def _only_for(flag: str, value: object, request: CompileRequest, *methods: str) -> None:
    if value is not None and request.method not in methods:
        raise flags.conflict(
            f"{flag} has no meaning for --method {request.method}",
            f"leave it out, or choose --method {methods[-1]}",
            expected=f"--method {' or '.join(methods)}",
        )
