"""When a sealed request may be sent once more although nobody authenticated its refusal: if the node's evidence proves
it.

Anybody on the way can deliver a request, drop its answer and say in the clear that it was refused. A client that
believed it would have the request served again and again. So the node is verified anew, and the request is sent once
more only where this fresh evidence shows that the node could not open it: it has another channel key, or its clock
shows a time at which the request was not valid. Every other refusal in the clear is the end of the request.

At a level that hides a prompt among others not even another key is enough: a node that started again has forgotten the
substitutes of its sessions, and would draw new ones.
"""

from __future__ import annotations

from cloister.channel.validity import CLOCKS_MAY_DIFFER_S
from cloister.client.message import SealedMessage
from cloister.client.verification import Verification
from cloister.errors import ChannelBroken, ChannelKeyUnknown, MessageExpired

DENIED = (ChannelKeyUnknown, MessageExpired)
"""What the node could say in truth, and anybody else too."""


def check_denial(said: ChannelBroken, message: SealedMessage, before: Verification, now: Verification) -> None:
    """Return if the evidence of `now` bears out what was said of a message sealed by that of `before`; raise if not."""
    if isinstance(said, MessageExpired):
        if not _was_invalid(message, before, now):
            raise MessageExpired(
                "Somebody says that the sealed request came too late. By the node's clock it was sent in time.",
                hint="Somebody on the way holds messages back, or the node is overloaded. It was not sent again.",
            )
    elif now.channel_key == before.channel_key:
        raise ChannelKeyUnknown(
            "Somebody says that the node does not hold its channel key. By its evidence it does.",
            hint="Somebody on the way refuses messages in its name. The request may have been served; it was not sent "
            "again.",
        )
    elif message.winnower is not None:
        raise ChannelKeyUnknown(
            "The node has another channel key: it started again, and what its sessions remembered is gone. The request "
            "was not sent again.",
            hint="The node is verified anew. Send the request again, in a new session.",
        )


def _was_invalid(message: SealedMessage, before: Verification, now: Verification) -> bool:
    """Whether the node's clock, as it was when the message was sealed, lies outside of the message's validity.

    What the evidence says of the clock is older by as long as it was on its way, which anybody can prolong. So the
    clock was at `earliest` or up to `took_s` later.
    """
    earliest_s = (now.node_ms() - before.node_ms()) / 1000
    too_old = earliest_s > message.validity.for_ms / 1000 + CLOCKS_MAY_DIFFER_S
    not_yet = earliest_s + now.took_s < -CLOCKS_MAY_DIFFER_S
    return too_old or not_yet
