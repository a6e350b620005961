"""The reference executor keeps the engine's rules for K, depth and the end of the context."""

from pathlib import Path

import pytest

from specc.backends.reference.executor import ReferenceArtifact
from specc.driver import CompileRequest, compile_model
from specc.errors import RequestError
from specc.progress import SilentProgress

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
