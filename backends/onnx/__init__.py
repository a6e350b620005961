"""Whole graphs as ONNX models: run by onnxruntime, or compiled for Ascend by CANN."""

from specc.errors import BackendError

try:
    import onnx  # noqa: F401 (asked for here, where a package that is missing has a cure)
except ImportError as error:
    raise BackendError(
        "SPECC-E0427", "--device onnx and ascend need onnx, which is not installed", found=str(error),
        cure="pip install 'specc-compiler[onnx]'",
    ) from error  # fmt: skip

from specc.backends.onnx.lower import OnnxBackend

__all__ = ["OnnxBackend"]
