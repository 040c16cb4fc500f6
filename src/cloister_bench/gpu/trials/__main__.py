"""One trial of a GPU machine; `cloister bench gpu` runs all of them.

python -m cloister_bench.gpu.trials check --json FILE
python -m cloister_bench.gpu.trials serve --json FILE --model FOLDER_OR_GGUF
python -m cloister_bench.gpu.trials serve --json FILE --model FOLDER --like FOLDER   # random weights, made there

`verified` and `million` take --model or --like, too: like `serve`, but in their own sizes.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from cloister_bench.gpu.trials import MODULES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=list(MODULES))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="the model that is served")
    parser.add_argument("--like", type=Path, help="make it first: random weights of this folder's shape")
    options = parser.parse_args()
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        found[name] = value
        options.json.write_text(json.dumps(found, indent=1))
        print(f"## {name}: {json.dumps(value)[-3000:]}", flush=True)

    getattr(import_module(f"cloister_bench.gpu.trials.{MODULES[options.trial]}"), options.trial)(options, note)


if __name__ == "__main__":
    main()
