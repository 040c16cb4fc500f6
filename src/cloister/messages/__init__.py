"""Messages that cross a process boundary: typed, bounded, never pickled. One file a wire, and shared parts."""
