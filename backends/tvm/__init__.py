"""Code for CPUs and GPUs through TVM: Relax, and kernels of ours in TIR. Nothing of TVM is needed at run time."""

from specc.backends import TVM
from specc.errors import BackendError

try:
    import tvm
except ImportError as error:
    raise BackendError(
        "SPECC-E0444", "the tvm backend needs apache-tvm, which is not installed", found=str(error),
        cure="pip install 'specc-compiler[tvm]'",
    ) from error  # fmt: skip

if tvm.__version__.split(".post")[0] != TVM:
    raise BackendError(
        "SPECC-E0444", "the tvm backend, and --format mlc, need the TVM whose API they know",
        expected=f"apache-tvm {TVM}", found=tvm.__version__, cure="pip install 'specc-compiler[tvm]'",
    )  # fmt: skip

from specc.backends.tvm.lower import TvmBackend

__all__ = ["TvmBackend"]
