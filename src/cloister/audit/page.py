"""The ledger as the chat page has it: its rows and, as data, those attempts that a browser can make.

`python -m cloister.audit.page` writes the page's file again.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cloister
from cloister.audit import surface
from cloister.audit.ledger import LEDGER, Absent, Attempt
from cloister.audit.target import COMPLETIONS
from cloister.client.verification import ENDPOINT
from cloister.levels import ISOLATED

FILE = Path(cloister.__file__).parent / "gateway" / "page" / "ledger.json"
_ASKED = {"model": "{model}", "prompt": "Say a word.", "max_tokens": 1}  # the page puts in its model


def _try(
    refused: Iterable[int], body: Any = None, *, method: str = "POST", path: str = COMPLETIONS, **more: Any
) -> Any:
    return {"method": method, "path": path, "body": body, "key": "own", "headers": {}, "refused": [*refused], **more}


def _with_fields(fields: Iterable[str]) -> list[Any]:
    return [_try(surface.REFUSED, {**_ASKED, field: 1}) for field in fields]


TRIES: dict[Attempt, list[Any]] = {
    surface.priority: _with_fields(surface.PRIORITY),
    surface.speculation: _with_fields(surface.SPECULATION),
    surface.placement: _with_fields(surface.PLACEMENT),
    surface.misspelt: [
        _try(surface.REFUSED, {**_ASKED, "protecton": ISOLATED}),
        _try(surface.REFUSED, {**_ASKED, "protection": "isolatd"}),
        _try(surface.REFUSED, _ASKED, headers={"X-Cloister-Protecton": ISOLATED}),
    ],
    surface.wrong_key: [_try([401], _ASKED, key=key) for key in ("none", "wrong")],
    surface.privileged: [
        _try(surface.HIDDEN, None if method == "GET" else {}, method=method, path=path, key="none")
        for method, path in surface.PRIVILEGED
    ],
}
"""Each request must get one of the `refused` statuses. `key`: the page's own, none or a wrong one."""
_NONCES = ("", "00", "zz" * 32)
_NONCE = [_try([400, 422], {"nonce": nonce, "since": 0}, path=ENDPOINT, key="none") for nonce in _NONCES]


def shown() -> list[dict[str, Any]]:
    rows = []
    for row in LEDGER:
        tries = TRIES.get(row.attempt, _NONCE if "nonce" in row.name else [])
        why = row.attempt.why if isinstance(row.attempt, Absent) else ""
        off = bool(why) or row.attempt in (surface.speculation, surface.placement)
        rows.append({"name": row.name, "endangers": row.endangers, "off": off, "why": why, "tries": tries})
    return rows


def written() -> bytes:
    """A row in a line."""
    return ("[\n" + ",\n".join(map(json.dumps, shown())) + "\n]\n").encode()


if __name__ == "__main__":
    FILE.write_bytes(written())
