"""CPU code through TVM: Relax, and kernels of ours in TIR. Nothing of TVM is needed at run time."""

from specc.errors import BackendError

try:
    import tvm
except ImportError as error:
    raise BackendError(
        "SPECC-E0444", "the tvm backend needs apache-tvm, which is not installed", found=str(error),
        cure="pip install 'specc-compiler[tvm]'",
    ) from error  # fmt: skip

from specc.backends.tvm.lower import TvmBackend

assert tvm

__all__ = ["TvmBackend"]
