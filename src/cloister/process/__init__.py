"""What every process of Cloister is made of: how it is started, hardened, spoken to, sealed and ended.

The package knows processes, sockets and the Linux kernel; it knows nothing of models, prompts or protection levels.
"""
