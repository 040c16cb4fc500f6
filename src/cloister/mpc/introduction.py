"""A dealer introduces itself to one party: the right certificate, the same language, the same settings."""

from __future__ import annotations

import asyncio
import ssl

from cloister.errors import PartyLost, ProtocolError, SetupError, Unauthorized, error_from_code
from cloister.link.network.address import Address
from cloister.messages.mpc import VERSION, Hello, Refused, ToDealer, Welcome
from cloister.mpc.certificates import Role, require
from cloister.mpc.config import PartiesConfig
from cloister.mpc.line import Line

CONNECT_S = 15.0


async def introduce(config: PartiesConfig, rank: int, tls: ssl.SSLContext) -> tuple[Line, Welcome]:
    """The connection, and what the party says of itself."""
    place = config.party[rank]
    address = Address.parse(place.control)
    where = f"Party {rank} ({address})"
    try:
        opening = asyncio.open_connection(str(address.host), address.port, ssl=tls)
        reader, writer = await asyncio.wait_for(opening, CONNECT_S)
    except ssl.SSLError:
        raise Unauthorized(f"{where} and we have no authority in common.", hint="Compare the keys' folders.") from None
    except (TimeoutError, OSError):
        raise PartyLost(f"{where} cannot be reached.", hint="Start it: `cloister mpc party --rank …`.") from None
    line = Line(reader, writer, ToDealer)
    try:
        require(writer.get_extra_info("ssl_object"), Role("party", str(rank)), place.fingerprint)
        line.post(Hello(VERSION))
        welcome = await line.receive(CONNECT_S)
        if welcome is None:
            raise Unauthorized(f"{where} refuses our certificate.", hint="It must be of the parties' own authority.")
        if isinstance(welcome, Refused):
            raise error_from_code(welcome.code, welcome.message, hint=welcome.hint or None)
        if not isinstance(welcome, Welcome) or welcome.version != VERSION or welcome.rank != rank:
            raise ProtocolError(f"{where} speaks another language.", hint="Use the same version of Cloister.")
        if welcome.agreement != config.agreement:
            raise SetupError(f"{where} has other settings than ours.", hint="All need the same file.")
    except TimeoutError:
        line.abort()
        raise PartyLost(f"{where} does not answer.") from None
    except BaseException:
        line.abort()
        raise
    return line, welcome
