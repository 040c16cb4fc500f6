"""Every message that crosses a process boundary: typed, bounded, never pickled. One file a wire, named after its ends;
`types`, `prompts`, `obfuscation`, `generation` and `lifecycle` are shared by several wires. Nothing here sends or
receives."""
