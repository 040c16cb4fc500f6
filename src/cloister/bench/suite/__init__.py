"""The frame of every benchmark suite: parts measured one after another (`measurement`), sides measured in turn
(`rounds`), one JSON document and its targets (`results`), `tables` and `figures`. Knows no suite's numbers.

A suite is a Plan (a frozen dataclass of what is measured), a subclass each of Results and Measurement, and what it
draws and tabulates from its document.
"""
