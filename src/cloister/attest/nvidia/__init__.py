"""NVIDIA GPUs by their own signed reports (Hopper, Blackwell)."""
