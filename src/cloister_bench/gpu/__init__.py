"""What isolation costs on a GPU. Each shape is measured in a process: a lost device costs that shape only."""
