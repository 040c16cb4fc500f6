"""What isolation costs on a GPU: decode steps and whole requests of models' shapes with random weights, beside the
floor and transformers. What computes runs in a process for each shape (`session`): a lost device costs that shape
only."""
