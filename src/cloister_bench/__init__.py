"""What measures Cloister and attacks it: benchmarks, laboratories, rebuilt baselines, figures. No node runs it.

`cloister` imports nothing from here; `cloister bench` comes through an entry point (`cloister.cli.__init__`).
"""
