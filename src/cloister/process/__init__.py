"""What every process of Cloister is made of: how it is started, hardened, spoken to, sealed and ended.

The package knows processes, sockets and the Linux kernel. Models, prompts and levels are unknown to it.
"""
