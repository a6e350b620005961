"""Leaves for NVIDIA's GPUs through TVM and nvcc, under the same engine as those of `backends/cuda`."""
