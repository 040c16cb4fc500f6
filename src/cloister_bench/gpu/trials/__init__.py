"""Trials on a GPU machine: each ends with right or wrong. `cloister bench gpu` measures times, `cloister bench gpu-all`
runs all of both. They need `src` on the path, torch with CUDA and cuda-core, and no network."""
