"""An NVIDIA GPU (Hopper or later) as a device. Without torch's CUDA and `[gpu]` only `find.py` may be imported."""
