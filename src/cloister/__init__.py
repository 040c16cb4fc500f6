"""Cloister: private LLM serving. `Client` and `AsyncClient` are OpenAI's clients for a node that is verified first."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.client.openai import AsyncClient, Client
    from cloister.local_sampling import local_obfuscation

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__", "local_obfuscation"]


def __getattr__(name: str) -> Any:
    """The clients, when they are asked for: no process of the server is to load OpenAI's SDK."""
    if name in ("AsyncClient", "Client"):
        from cloister.client import openai

        return getattr(openai, name)
    if name == "local_obfuscation":
        from cloister.local_sampling import local_obfuscation

        return local_obfuscation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
