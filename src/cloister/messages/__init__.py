"""Every message that crosses a process boundary: typed, bounded, never pickled. One file a wire; `types`, `prompts`,
`generation` and `lifecycle` are shared by several. Nothing here sends or receives."""
