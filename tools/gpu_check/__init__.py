"""What only a machine with a GPU can find out about an artifact for CUDA."""
