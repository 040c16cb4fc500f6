"""The fork server: the service and all vaults are forked from it, with everything imported, mapped and read. No user's
data reaches it. It has one thread: others would not survive a fork."""
