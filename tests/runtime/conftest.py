"""The model library's kernels, built once for the session and each instruction set of this machine; the sampler."""

import numpy as np
import pytest

from tests.runtime.kernels import driver
from tests.runtime.sampling import driver as sampling

collect_ignore = [] if driver.ARM in driver.ISAS else ["test_arm.py"]


@pytest.fixture(scope="session")
def libraries():
    return driver.built()


@pytest.fixture(scope="session")
def models(libraries):
    return driver.load(libraries)


@pytest.fixture(params=driver.ISAS)
def model(request, models):
    chosen = models[request.param]
    chosen.use_threads(1)
    return chosen


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def sampler():
    return sampling.Sampler(sampling.built())
