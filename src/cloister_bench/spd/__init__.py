"""What vaults cost: Petridish's Figures 4–7 (§6) on this machine, and the targets we set ourselves.

It starts its own servers, measures them over HTTP as users would, and reads their /metrics and, as root, the kernel's
account of their memory. It imports nothing that computes, except to make random weights for the second model.
"""
