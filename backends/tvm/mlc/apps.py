"""The lines of an app that switch speculation on: MLC's own wrappers pass on a model and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LIMITS = """\
Where this was tried: on Linux, by a driver that makes the engine's calls with TVM's own runtime. It has not run inside
an MLC app, and not on a phone: verified_on_gpu: false.
"""

_SPECULATION = """\
These libraries are CPU code. MLC's engine speculates where it has its sampler on the device alone (CUDA, Vulkan,
Metal); its CPU sampler, as of July 2026, refuses a verified round (a wrong size check in batch_verify), and knows no
trees. So on an unmodified engine on a CPU play `engine-plain.json`, which does not speculate; `engine.json` is for an
engine where that is mended. specc's own library has no such limit: `specc compile MODEL --backend tvm`.
"""


def files(engine: Mapping[str, Any], target: str) -> dict[str, str]:
    """README.md, engine-plain.json, and where there is a drafter the lines for each kind of app, by file name."""
    plain = {
        k: v for k, v in engine.items()
        if k not in ("additional_models", "spec_draft_length", "spec_tree_width")
    } | {"speculative_mode": "disable"}  # fmt: skip
    found = {"README.md": _readme(engine, target)}
    if target == "host":
        found["rest.sh"] = _rest(engine)
    if engine["speculative_mode"] == "disable":
        return found
    found["engine-plain.json"] = json.dumps(plain, indent=1) + "\n"
    if target == "iphone":
        found["Speculation.swift"] = _SWIFT
    if target == "android":
        found["Speculation.kt"] = _KOTLIN
    return found


def _readme(engine: Mapping[str, Any], target: str) -> str:
    mode = engine["speculative_mode"]
    lines = ["# A model for MLC's engine", ""]
    if mode == "disable":
        lines += ["`target/` alone, without speculation.", ""]
    else:
        k = engine["spec_draft_length"]
        lines += [
            f"`target/` and `drafter/`, speculative_mode {mode}, {k} drafts a round. Keep max_num_sequence and",
            f"prefill_chunk_size at {k + 1} or more: with less the engine waits for ever, without a word. (The mode",
            "`interactive` alone sets it to 1.) An answer may be longer than max_tokens by what a round accepts.", "",
        ]  # fmt: skip
    if mode == "disable":
        return "\n".join([*lines, _HOW[target], _LIMITS])
    return "\n".join([*lines, _HOW[target] + _LINES[target], _LIMITS, _SPECULATION])


_HOW = {
    "host": "Run in this folder; paths in engine.json are relative to it. `rest.sh` starts MLC's REST server.\n",
    "iphone": (
        "`mlc_llm package` in this folder links what is here into libmodel_iphone.a and bundles the weights.\n"
        "MLCSwift runs every model on Metal, and this is CPU code: put kDLCPU in place of kDLMetal in LLMEngine.mm.\n"
    ),
    "android": (
        "`mlc_llm package` in this folder links what is here into libmodel_android.a and bundles the weights.\n"
        "mlc4j runs every model on OpenCL, and this is CPU code: put Device.cpu() in place of Device.opencl() in its\n"
        "JSONFFIEngine.java.\n"
    ),
}  # fmt: skip
_LINES = {
    "host": "",
    "iphone": "It reloads a model without its drafter: put `Speculation.swift` beside its LLMEngine.swift.\n",
    "android": "It reloads a model without its drafter: put `Speculation.kt` beside its MLCEngine.kt.\n",
}


def _rest(engine: Mapping[str, Any]) -> str:
    known = ("spec_draft_length", "max_num_sequence", "prefill_chunk_size")
    overrides = ";".join(f"{n}={engine[n]}" for n in known if n in engine)
    drafters = "".join(
        f" --additional-models {m},{lib}" for m, lib in engine.get("additional_models", [])
    )
    return (
        "#!/bin/sh\n# MLC's REST server. --mode is not interactive: see README.md.\n"
        f"exec mlc_llm serve {engine['model']} --model-lib {engine['model_lib']} --device cpu \\\n"
        f" {drafters} --speculative-mode {engine['speculative_mode']} \\\n"
        f'  --mode local --overrides "{overrides}"\n'
    )


_SWIFT = """\
// Speculation in MLCSwift: MLCEngine.reload(modelPath:modelLib:) passes on one model, so pass on engine.json.
// Needs `jsonFFIEngine` of MLCEngine visible here (it is private: say `internal`).
import Foundation

extension MLCEngine {
    /// `bundle`: the folder that `mlc_llm package` made, with engine.json copied beside target and drafter.
    public func reloadWithSpeculation(bundle: URL) async throws {
        let data = try Data(contentsOf: bundle.appendingPathComponent("engine.json"))
        var engine = try JSONSerialization.jsonObject(with: data) as! [String: Any]
        let path = { (name: String) in bundle.appendingPathComponent(name).path }
        engine["model"] = path(engine["model"] as! String)
        engine["additional_models"] = (engine["additional_models"] as! [[String]]).map { [path($0[0]), $0[1]] }
        jsonFFIEngine.reload(String(data: try JSONSerialization.data(withJSONObject: engine), encoding: .utf8)!)
    }
}
"""

_KOTLIN = """\
// Speculation in mlc4j: MLCEngine.reload passes on one model, so pass on engine.json to its JSONFFIEngine.
package ai.mlc.mlcllm

import java.io.File
import org.json.JSONArray
import org.json.JSONObject

/** `folder`: where the app keeps target, drafter and engine.json. */
fun JSONFFIEngine.reloadWithSpeculation(folder: File) {
    val engine = JSONObject(File(folder, "engine.json").readText())
    val drafter = engine.getJSONArray("additional_models").getJSONArray(0)
    engine.put("model", File(folder, engine.getString("model")).path)
    drafter.put(0, File(folder, drafter.getString(0)).path)
    engine.put("additional_models", JSONArray().put(drafter))
    reload(engine.toString())
}
"""
