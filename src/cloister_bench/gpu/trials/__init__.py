"""Trials on a GPU machine: each ends with right or wrong. They need `src` on the path, torch with CUDA, cuda-core."""
