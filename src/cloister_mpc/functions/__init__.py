"""Functions that are dear on secret shares, made cheap: few rounds first, then few bytes. On plain numbers too."""
