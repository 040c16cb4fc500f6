"""Files of public data, read where they lie."""

import csv
import json
from pathlib import Path
from typing import Any

from cloister.files import needed


def records(path: Path) -> Any:
    """A table's rows, a JSON file's content or that of its lines, or a text. SetupError where there is no such file."""
    with needed(f"{path.name} cannot be read", "See --data."), path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return list(csv.DictReader(file))
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file if line.strip()]
        return json.load(file) if path.suffix == ".json" else file.read()
