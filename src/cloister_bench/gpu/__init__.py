"""What isolation costs on a GPU, with random weights. Each shape has a process (`session`): a lost device costs it
only."""
