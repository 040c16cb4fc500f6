"""Attempts of one tenant on another. They need keys of two tenants."""

from cloister.audit.finding import Finding, broken, held, not_tried, off
from cloister.audit.target import Target, random_words

TRIALS = 4
PREFIX_WORDS = 120
FASTER = 0.7  # of the time that any text takes which no one sent before: what is found computed takes far less
NEEDS_TWO = "This takes the keys of two tenants: set CLOISTER_OTHER_API_KEY."


def _cached(reply: object) -> int:
    if not isinstance(reply, dict):
        return 0
    details = reply.get("usage", {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def prefix_caching(target: Target) -> Finding:
    """Whether a tenant finds what another sent alone, by `usage` or by the time of the first token. A cache that is off
    hides everything: the sender must find its own text."""
    if not target.other_key:
        return not_tried(NEEDS_TWO)
    reused = []
    for level in target.read_levels:
        known: list[float] = []
        fresh: list[float] = []
        own = 0
        for _ in range(TRIALS):
            text, unsent = random_words(PREFIX_WORDS), random_words(PREFIX_WORDS)
            target.complete(text, level, tokens=1)
            own = max(own, _cached(target.complete(text, level, tokens=1).document))
            for prompt, times in ((text, known), (unsent, fresh)):
                reply = target.complete(prompt, level, tokens=1, key=target.other_key)
                if reply.status != 200:
                    return not_tried(f"At {level} the other tenant's request was refused.")
                if _cached(reply.document):
                    return broken(f"At {level} `usage` shows a tenant what another one alone sent.")
                times.append(reply.first_s)
        if max(known) < FASTER * min(fresh):
            return broken(f"At {level} the first token shows a tenant what another one alone sent.")
        reused += [level] if own else []
    if not reused:
        return off("No computed prompt is used again, not even its sender's.")
    return held(f"Its sender finds a text at {', '.join(reused)}, the other tenant does not, in {TRIALS} trials.")


def views(target: Target) -> Finding:
    """What the provider sees of a request is for its own user."""
    level = target.plain_levels[0]
    reply = target.complete("Say a word.", level, tokens=2)
    name = reply.document.get("id") if isinstance(reply.document, dict) else None
    if name is None:
        return not_tried("No answer came whose view could be asked for.")
    path = f"/v1/requests/{name}/view"
    if target.ask("GET", path, key="").status not in (401, 403) and target.ask("GET", path).status != 200:
        return not_tried("The node shows no views.")
    if not target.other_key:
        return not_tried(NEEDS_TWO)
    if target.ask("GET", path, key=target.other_key).status == 200:
        return broken("A tenant gets the view of another one's request.")
    return held("Another tenant's key gets no view of it.")
