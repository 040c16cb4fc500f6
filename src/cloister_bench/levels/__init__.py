"""The README's table: every level on one server in one run, as a plain call and with a named session."""
