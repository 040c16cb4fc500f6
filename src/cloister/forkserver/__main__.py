"""Entry of the fork server process: `python -m cloister.forkserver FD`, started by the controller."""

from __future__ import annotations

import os

from cloister.process.hardening import begin_child

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main() -> None:
    """Libraries that would start threads are told not to before they are imported."""
    control = begin_child("forkserver")
    os.environ.update(ONE_THREAD)
    from cloister.forkserver.process import serve

    serve(control)


if __name__ == "__main__":
    main()
