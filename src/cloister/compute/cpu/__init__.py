"""The CPU as a device: C kernels with a team of threads, and links in shared memory."""
