"""Tools that a model may call: checked as a user gives them, and found in what it answers. No I/O, no tokens."""
