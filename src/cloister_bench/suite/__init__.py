"""The frame of every suite: how parts and sides are measured (`measurement`), and one JSON document (`documents`). A
suite is a Plan, a subclass each of Results and Measurement, and its tables and figures."""
