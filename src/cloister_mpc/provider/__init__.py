"""The owner of the weights: fits a model's numbers into fixed point, then deals it to the parties as shares."""
