"""The fork server: a preloaded process from which the service and all vaults are forked.

It has imported everything, mapped the weights and read the tokenizer, so that a child is ready in milliseconds and
shares all of that memory. No user's data reaches it. It has one thread: others would not survive a fork.
"""
