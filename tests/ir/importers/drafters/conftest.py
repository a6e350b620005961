"""The tiny target that drafter checkpoints in these tests are made for."""

import pytest
from transformers import PreTrainedModel

from specc.ir.importers.drafters import Target
from specc.ir.importers.huggingface import import_model
from tests.ir.importers.drafters import synthetic


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return synthetic.target()


@pytest.fixture(scope="module")
def target(model: PreTrainedModel) -> Target:
    return Target.of(import_model(model, "tiny"))
