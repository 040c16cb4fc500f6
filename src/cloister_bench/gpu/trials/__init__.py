"""Trials on a GPU machine: each ends with right or wrong. `cloister bench gpu` measures times.
`python -m cloister_bench.gpu.trials` runs all of them, each in a process, into one JSON; each module also runs alone.
They need `src` on the path, torch with CUDA and cuda-core, and no network."""
