"""Every message that crosses a process boundary: typed, bounded, never pickled. One file a wire, named after its ends.

`frames` packs messages for a stream. `types`, `prompts` and `obfuscation` are words that several wires share;
`generation` and `lifecycle` are messages that are the same on several wires. Nothing here sends or receives.
"""
