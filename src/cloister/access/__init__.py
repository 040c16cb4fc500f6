"""Anonymous tokens in place of API keys, their issuer, and the node that a token names. Its only I/O is files."""
