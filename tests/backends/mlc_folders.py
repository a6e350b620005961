"""Folders for MLC that tests share, and what their JSON files must be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from filelock import FileLock
from jsonschema import Draft202012Validator

from specc.backends.tvm import mlc
from specc.judge import check_request
from specc.mlc import compile_folder
from specc.progress import SilentProgress
from specc.request import CompileRequest

SCHEMAS = Path(mlc.__file__).parent / "schemas"


def folder_for_mlc(model: Path, output: Path, method: str, **options: Any) -> Path:
    """Compile once per run, whichever worker comes first."""
    isa = "native" if "mlc_target" in options else "avx2"
    options = {"prefill_chunk": 4, "isa": isa, **options}
    request = CompileRequest(str(model), output, method=method, format="mlc", **options)
    check_request(request)
    with FileLock(str(output) + ".lock"):
        if not output.exists():
            compile_folder(request, SilentProgress())
    return output


def schema(name: str) -> Draft202012Validator:
    found = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def check_folder(folder: Path, package_too: bool) -> dict[str, Any]:
    """Every JSON against its schema; what names something names what is there. Returns engine.json."""
    engine: dict[str, Any] = json.loads((folder / "engine.json").read_text())
    schema("engine").validate(engine)
    pairs = [[engine["model"], engine["model_lib"]], *engine.get("additional_models", [])]
    for name, library in pairs:
        model = folder / name
        chat = json.loads((model / "mlc-chat-config.json").read_text())
        schema("mlc-chat-config").validate(chat)
        assert all((model / file).is_file() for file in chat["tokenizer_files"])
        params = json.loads((model / "tensor-cache.json").read_text())
        schema("tensor-cache").validate(params)
        for shard in params["records"]:
            assert (model / shard["dataPath"]).stat().st_size == shard["nbytes"]
            assert all(r["byteOffset"] + r["nbytes"] <= shard["nbytes"] for r in shard["records"])
        assert (folder / library).is_file() or library.startswith("system://")
    check_record(folder)
    if package_too:
        packaged = json.loads((folder / "mlc-package-config.json").read_text())
        schema("mlc-package-config").validate(packaged)
        libraries = packaged["model_lib_path_for_prepare_libs"]
        assert [(m["model"], f"system://{m['model_lib']}") for m in packaged["model_list"]] == [
            tuple(p) for p in pairs
        ]
        assert {m["model_lib"] for m in packaged["model_list"]} == set(libraries)
        assert all((folder / path).is_file() for path in libraries.values())
    return engine


def check_record(folder: Path) -> None:
    """specc.json says where the folder comes from, and knows every file of it but itself."""
    record = json.loads((folder / "specc.json").read_text())
    schema("specc").validate(record)
    there = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    del there["specc.json"]
    assert record["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in there.items()
    }
