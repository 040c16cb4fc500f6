"""One server for each policy: `safekv` is the level `shared`, the others `--prefix-policy` at `open`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloister.keys import key_line
from cloister.levels import LEVELS, OPEN
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.attack import Caller


class Served(OwnServer):
    """Use it in a `with`. A tenant's name is its key."""

    def __init__(
        self, policy: str, model: str | None, folder: Path, tenants: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        keys = folder / "keys.toml"
        keys.write_text("\n".join(["[keys]", *(key_line(name, name) for name in tenants)]))
        examined = policy == "safekv"
        detector = ["--detector"] if examined else ["--no-detector", "--prefix-policy", policy]
        arguments = ["--keys", str(keys), "--mpc", "off", *options, *detector]
        super().__init__(model, folder, arguments, api_key=tenants[0])
        self.level: str = next(level.name for level in LEVELS.values() if level.examined) if examined else OPEN
        self._callers: list[Caller] = []

    def __exit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.close()
        super().__exit__()

    def caller(self, tenant: str) -> Caller:
        self._callers.append(Caller(str(self.address), self.model, tenant, self.level))
        return self._callers[-1]
