"""Where the runtime's C and C++ files are: for those who build it, and for apps that embed it."""

from __future__ import annotations

from pathlib import Path

INCLUDE = Path(__file__).resolve().parent / "include"
"""`specc.h`, the C ABI, and `specc_model.h`, the border to compiled functions."""

CPP = Path(__file__).resolve().parent / "cpp"
"""`core`, `tokenizer` and `model`, the sources of libspecc and of every model library."""
