"""The frame of every benchmark suite: how its parts and sides are measured (`measurement`), and one JSON document with
targets, tables and figures (`documents`). Knows no suite's numbers.

A suite is a Plan (a frozen dataclass of what is measured), a subclass each of Results and Measurement, and what it
draws and tabulates from its document.
"""
