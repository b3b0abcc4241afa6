"""One NVIDIA device: its facts, whether it is free, what happened to it during a replay."""
