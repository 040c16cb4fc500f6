"""What MPCache is compared with: other ways of keeping the KV cache, behind the contract of `mpc/cache/base.py`.

The server serves none of them, and no party knows their names: the bench compiles their programs itself and hands them
to parties of its own (`bench/mpc/party.py`), so a plan of theirs that arrives in a message is refused.
"""
