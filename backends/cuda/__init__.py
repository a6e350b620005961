"""CUDA through Inductor and Triton: cubins for a named architecture, made where there is no GPU."""

from specc.backends.cuda.lower import CudaBackend

__all__ = ["CudaBackend"]
