"""Tensor digests computed on the NVIDIA device that holds the tensor, equal to the host's."""
