"""Models in other forms -> a speculative program with one function, `target`."""
