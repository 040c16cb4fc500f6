"""An NVIDIA GPU as a device: CUDA kernels compiled at run time, a paged cache in its memory.

Needs Hopper or later, torch with CUDA and the extra `[gpu]`. Nothing here is imported on a machine without them:
`find.py` says why a GPU cannot be used and imports neither.
"""
