"""One thread a process, and `tests.passes.toy` importable however pytest is started."""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent.parent))
torch.set_num_threads(1)  # tensors here are tiny, and threads that wait for each other spin
