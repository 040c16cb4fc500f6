"""Reuse of computed prefixes: who may find whose blocks, what is kept, what goes first (SafeKV, §V and §VI).

Nothing here knows text, requests' parameters or levels of protection. `base` is all that the engine sees.
"""
