"""What NVIDIA's driver answers on this machine when it is asked for evidence, step by step, as JSON.

    python -m cloister_bench.gpu.trials.evidence [--json FILE] [--nonce HEX]

Exit code: 0 every GPU reported, 3 the GPUs are not in confidential mode, 2 there is no GPU, 1 anything else. Where no
GPU is in confidential mode, Python's own library is all it needs.
"""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, GpuNotConfidential, NoGpu

NVML = Path(__file__).parents[3] / "cloister/attest/nvidia/nvml.py"
EXITS: tuple[tuple[type[CloisterError], int], ...] = ((NoGpu, 2), (GpuNotConfidential, 3), (CloisterError, 1))


def nvml_module() -> Any:
    """By its file: the package around it needs packages that a GPU machine may not have."""
    spec = importlib.util.spec_from_file_location("nvml", NVML)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(nonce: bytes) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    try:
        nvml = nvml_module().Nvml()
        found["gpus"] = nvml.count()
        nvml.check_confidential()
        found["reports"] = reports(nvml, nonce)
    except CloisterError as reason:
        found["error"] = {"code": reason.code, "message": reason.message, "hint": reason.hint}
        return found, next(code for kind, code in EXITS if isinstance(reason, kind))
    return found, 0


def reports(nvml: Any, nonce: bytes) -> list[dict[str, Any]]:
    """What each GPU reports. `cloister attest check --kind nvidia` verifies it."""
    from cloister.attest.nvidia.reporter import GpuReporter
    from cloister.attest.nvidia.spdm import describe, read_bundle

    return [describe(one.report.opaque) for one in read_bundle(GpuReporter(nvml).show(nonce), None)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path, help="write the answers there, too")
    options.add_argument("--nonce", default="00" * 32, help="32 bytes in hex")
    given = options.parse_args()
    found, code = answers(bytes.fromhex(given.nonce))
    print(json.dumps(found, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
