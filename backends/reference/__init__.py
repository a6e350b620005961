"""Plain torch: runs whatever a program says, slowly. The oracle, and the way out where a backend has no kernel."""

from specc.backends.reference.lower import ReferenceBackend

__all__ = ["ReferenceBackend"]
