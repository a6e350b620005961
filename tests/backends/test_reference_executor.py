"""The reference executor keeps the engine's rules for K, depth and the end of the context."""

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.backends.reference.executor import ReferenceArtifact
from specc.driver import CompileRequest, compile_model
from specc.errors import ArtifactError, RequestError
from specc.progress import SilentProgress
from tests.ir.importers.test_pt2 import change

PROMPT, MAX_LEN = [5, 6, 7], 32


@pytest.fixture(scope="module")
def artifact(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceArtifact:
    output = tmp_path_factory.mktemp("reference") / "layerskip.specc"
    request = CompileRequest(
        str(tiny_model), output, method="layerskip", draft_layers=(0, 1), backend="reference",
        num_speculative_tokens=(0, 2, 4), max_model_len=MAX_LEN,
    )  # fmt: skip
    compile_model(request, SilentProgress())
    return ReferenceArtifact.load(output)


def test_every_k_fills_the_context_with_the_same_text(artifact: ReferenceArtifact) -> None:
    texts = {
        tuple(artifact.generate(PROMPT, max_tokens=99, num_speculative_tokens=k, ignore_eos=True))
        for k in (0, 2, 4)
    }
    assert [len(text) for text in texts] == [MAX_LEN - len(PROMPT)]


def test_it_does_not_claim_to_be_lossless(artifact: ReferenceArtifact) -> None:
    """Torch may sum one row in another order than several: who wants the claim takes inductor."""
    assert not artifact.manifest.lossless


@pytest.mark.parametrize(("k", "depth"), [(3, 0), (-1, 0), (0, 1), (2, 1)])
def test_what_the_artifact_does_not_have_is_refused(
    artifact: ReferenceArtifact, k: int, depth: int
) -> None:
    with pytest.raises(RequestError, match="SPECC-E0601"):
        list(artifact.generate(PROMPT, max_tokens=4, num_speculative_tokens=k, depth=depth))


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.filterwarnings("ignore")
def test_nothing_in_an_artifact_is_executed(artifact: ReferenceArtifact, tmp_path: Path) -> None:
    """Its leaves are archives that torch.export.load would unpickle: listed or not, and whatever their hashes say."""
    path = tmp_path / "a.specc"
    shutil.copytree(artifact.path, path)
    leaf = sorted((path / "leaves").glob("*.pt2"))[0]
    evil = path / "leaves/not-listed.pt2"
    shutil.copy(leaf, evil)
    torch.save(Bomb(), bomb := io.BytesIO())
    change(evil, "sample_inputs/model.pt", bomb.getvalue())
    assert "not-listed" not in ReferenceArtifact.load(path).leaves

    evil.rename(leaf)
    with pytest.raises(ArtifactError, match=r"SPECC-E0505[\s\S]*another hash"):
        ReferenceArtifact.load(path)

    manifest = json.loads((path / "manifest.json").read_text())
    data = leaf.read_bytes()
    told = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest["files"][f"leaves/{leaf.name}"] = told
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"SPECC-E0505[\s\S]*sample inputs that are no tensors"):
        ReferenceArtifact.load(path)
