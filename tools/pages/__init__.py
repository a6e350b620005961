"""Pages of docs/ that are made from the code: errors, support and checkpoints. `python -m pages` writes them."""
