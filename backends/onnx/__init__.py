"""Whole graphs as ONNX models: run by onnxruntime, or compiled for Ascend by CANN."""

from specc.backends.onnx.lower import OnnxBackend

__all__ = ["OnnxBackend"]
