"""What isolation costs on a GPU: decode steps and whole requests of models' shapes with random weights, beside the
floor, the paper's design (Petridish §5: queries go through the host to every user's process) and transformers.

`plan`, `results`, `figures`, `run` know no CUDA. What computes runs in a process for each shape (`session`), so that a
lost device costs that shape's numbers and no others, and nothing measured stays on the GPU.
"""
