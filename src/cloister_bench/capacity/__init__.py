"""Capacity: how many nodes a number of users needs. A machine is measured; a simulation replays a trace on many."""
