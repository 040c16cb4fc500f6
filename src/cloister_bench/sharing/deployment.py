"""One server for each policy, with tenants that have keys. Knows how policies are asked for: `safekv` by the
level `shared`, the others by `--prefix-policy` at `open`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cloister.keys import key_line
from cloister.levels import LEVELS, OPEN
from cloister_bench.connection import on_free_port
from cloister_bench.servers import ServerProcess
from cloister_bench.sharing.attack import Caller

START_S = 300


class Served:
    """Use it in a `with`. A tenant's name is its key."""

    def __init__(
        self, policy: str, model: str | None, folder: Path, tenants: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        self.policy = policy
        keys = folder / "keys.toml"
        keys.write_text("\n".join(["[keys]", *(key_line(name, name) for name in tenants)]))
        self.address = on_free_port()
        command = [sys.executable, "-m", "cloister", "serve", "--port", str(self.address.port), "--keys", str(keys)]
        command += ["--mpc", "off", *(["--model", model] if model else []), *options]
        examined = policy == "safekv"
        command += ["--detector"] if examined else ["--no-detector", "--prefix-policy", policy]
        self.level: str = next(level.name for level in LEVELS.values() if level.examined) if examined else OPEN
        self._server = ServerProcess("cloister", command, self.address, folder / f"{policy}.log", api_key=tenants[0])
        self._callers: list[Caller] = []
        self.model = ""

    def __enter__(self) -> Self:
        self._server.__enter__()
        try:
            self.model = asyncio.run(self._server.ready(START_S))
        except BaseException:
            self._server.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.close()
        self._server.__exit__(None, None, None)

    @property
    def session(self) -> int:
        """Of all its processes."""
        return self._server.pid

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def caller(self, tenant: str) -> Caller:
        self._callers.append(Caller(str(self.address), self.model, tenant, self.level))
        return self._callers[-1]
