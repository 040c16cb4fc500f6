"""The holder of the prompt at the level `mpc`: reads it, deals it as shares, joins the answer."""
