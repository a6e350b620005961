"""The basis of mtp:structure is the principal components of the model's own keys and values, by other means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specc.calibration import Calibration, fit_structure
from specc.ir.importers.source import load_model
from specc.passes import pipelines
from specc.passes.pipeline import Pipeline
from specc.passes.pipelines import Shape


@pytest.fixture(scope="module")
def stretches(tiny_model: Path) -> tuple[list[Calibration], np.ndarray]:
    """Two texts, and what transformers' modules make of them: [key; value] of the last layer, before any rotation."""
    shape = Shape(max_model_len=128)
    program = Pipeline("target", pipelines.target(shape))(load_model(str(tiny_model), 128).program)
    draw = np.random.default_rng(1)
    texts = [draw.integers(5, 200, 80).tolist() for _ in range(2)]
    eager = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    attention = eager.model.layers[-1].self_attn
    kept: list[list[torch.Tensor]] = [[], []]
    for place, module in enumerate((attention.k_proj, attention.v_proj)):
        module.register_forward_hook(lambda m, i, o, place=place: kept[place].append(o[0]))
    with torch.no_grad():
        for text in texts:
            eager(torch.tensor([text]))
    rows = torch.cat([torch.cat(parts) for parts in kept], 1)
    return [Calibration(program, text) for text in texts], rows.double().numpy()


def test_features_are_the_models_keys_and_values(
    stretches: tuple[list[Calibration], np.ndarray],
) -> None:
    calibrations, rows = stretches
    found = torch.cat([c.structure_features() for c in calibrations]).numpy()
    np.testing.assert_allclose(found, rows, atol=1e-4)


def test_components_are_uncorrelated_and_say_most_first(
    stretches: tuple[list[Calibration], np.ndarray],
) -> None:
    """Their variances are the squares of the singular values of the standardised rows."""
    calibrations, rows = stretches
    basis = fit_structure(calibrations)
    z = rows @ basis.weight.double().numpy().T + basis.bias.double().numpy()
    standard = (rows - rows.mean(0)) / rows.std(0, ddof=1)
    variances = np.linalg.svd(standard, compute_uv=False) ** 2 / len(rows)
    covariance = z.T @ z / len(rows)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(np.diag(covariance), variances[: z.shape[1]], atol=2e-3)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=2e-3)


def test_the_same_text_gives_the_same_basis(
    stretches: tuple[list[Calibration], np.ndarray],
) -> None:
    calibrations, _ = stretches
    one, other = (fit_structure(calibrations) for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
    coefficients = one.weight * _units(calibrations)
    largest = coefficients.gather(1, coefficients.abs().argmax(1, keepdim=True))
    assert bool((largest > 0).all())


def _units(calibrations: list[Calibration]) -> torch.Tensor:
    """Undoes what puts each feature into its own units."""
    return torch.cat([c.structure_features() for c in calibrations]).std(0).float()
