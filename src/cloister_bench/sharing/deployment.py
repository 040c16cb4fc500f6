"""One server for each policy at the level `shared`, with tenants' keys, an operator's, and registered templates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from cloister.controller.template_file import sign_templates
from cloister.errors import ServiceUnavailable
from cloister.gateway.metrics import COARSE_S
from cloister.keys import key_line
from cloister.prefix.templates import Template
from cloister.transparency.note import Algorithm, new_key_file, read_key_file
from cloister_bench.connection import get
from cloister_bench.servers import OwnServer

OPERATOR = "operator"


class Served(OwnServer):
    """Use it in a `with`. A tenant's name is its key."""

    level = "shared"

    def __init__(
        self, policy: str, model: str | None, folder: Path, tenants: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        keys = folder / "keys.toml"
        lines = ["[keys]", *(key_line(name, name) for name in tenants), key_line(OPERATOR, OPERATOR, operator=True)]
        keys.write_text("\n".join(lines))
        arguments = ["--keys", str(keys), "--mpc", "off", "--shared-policy", policy, *options]
        super().__init__(model, folder, arguments, api_key=OPERATOR)

    async def found_tokens(self) -> int:
        """Prompt tokens that tenants found computed, in steps of 1,000: `usage` hides what others computed."""
        await asyncio.sleep(COARSE_S + 1)  # totals may be that old
        exchange = await get(self.address, "/metrics", OPERATOR)
        if exchange.status != 200:
            raise ServiceUnavailable(f"The server does not show its totals (HTTP {exchange.status}).")
        families = text_string_to_metric_families(exchange.body.decode())
        samples = (sample for family in families for sample in family.samples)
        return int(sum(one.value for one in samples if one.name == "cloister_prefix_tokens_reused_total"))


def registered(folder: Path, templates: Sequence[Template]) -> list[str]:
    """Options of a server that has these templates."""
    new_key_file(folder / "templates.key", "bench.example")
    key = read_key_file(folder / "templates.key", Algorithm.ED25519)
    text = "".join(msgspec.json.encode(one).decode() + "\n" for one in templates)
    (folder / "templates").write_text(sign_templates(text, key))
    return ["--templates", str(folder / "templates"), "--templates-key", str(key.verifier)]
