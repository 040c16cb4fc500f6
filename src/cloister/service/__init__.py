"""The process that owns the model and computes for everybody: it receives token ids and gives token ids.

It knows nothing of HTTP, text or API keys. `Backend` is how a gateway sees it and the vaults beside it, with the
controller in between; `ControllerClient` is the one over a socket.
"""
