"""Options of commands that may reach a node through a relay and pay with tokens; which parts of anonymity hold then."""

from pathlib import Path
from typing import TYPE_CHECKING

from cloister.cli.options import KeyOptions, NodePolicy
from cloister.config import option

if TYPE_CHECKING:
    from cloister.client.cloud_transport import CloudAccess


class AnonymityOptions(NodePolicy, KeyOptions):
    relay: str | None = option(None, "An oblivious relay: the node learns no address.", metavar="URL")
    issuer: str | None = option(None, "An issuer of tokens, which pay for requests in place of a key.", metavar="URL")
    cloud: Path | None = option(None, "With --issuer: the list of the cloud's nodes and token keys.")

    def access(self, url: str) -> "CloudAccess":
        """With --issuer: how to reach the cloud of the node `url`."""
        from cloister.access.cloud import cloud_of
        from cloister.client.cloud_transport import CloudAccess
        from cloister.client.tokens import TokenSource

        source = TokenSource(cloud_of(self.cloud), str(self.issuer), self.api_key())
        access = CloudAccess(url, source, self.load(), self.relay)
        access.check()
        source.begin()
        return access

    def anonymity(self) -> list[str]:
        """Which parts of it hold now."""
        address = f"hidden behind {self.relay}, which sees it" if self.relay else "seen by the node (--relay hides it)"
        key = "your API key, which the node sees (--issuer hides it)"
        name = f"shown to {self.issuer} alone, which sees no request" if self.issuer else key
        chosen = "each request's token, which only you know" if self.issuer else "you"
        return [f"Address   {address}", f"Name      {name}", f"Node      chosen by {chosen}"]
