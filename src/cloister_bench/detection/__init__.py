"""How well detection tells private blocks from public ones, and how long it takes: SafeKV's Figures 7 and 9."""
