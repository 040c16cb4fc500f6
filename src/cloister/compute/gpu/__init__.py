"""An NVIDIA GPU as a device. Needs Hopper or later, torch with CUDA and the extra `[gpu]`.
Nothing here is imported on a machine without them: `find.py` says why a GPU cannot be used and imports neither."""
