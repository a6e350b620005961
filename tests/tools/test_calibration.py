"""What calibration does for speed means what the dialect says."""

import pytest
import torch

from specc.calibration import attention_at_once
from specc.ir.dialect import ops


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_at_once_is_the_dialects(
    first: int, window: int, softcap: float, sinks: bool
) -> None:
    """Texts that begin at a later row of the cache, and calls that continue one."""
    draw = torch.Generator().manual_seed(1)
    heads, groups, width, rows = 2, 3, 8, 16
    q = torch.randn(9, heads * groups, width, generator=draw)
    k, v = (torch.randn(heads, rows, width, generator=draw).half() for _ in range(2))
    positions = torch.arange(2, 11)
    sink = torch.randn(heads * groups, generator=draw) if sinks else None
    given = (q, k, v, positions, positions + first, None, 0.3, window, softcap, sink)
    torch.testing.assert_close(attention_at_once(*given), ops.cached_attention.default(*given))
