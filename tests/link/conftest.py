from __future__ import annotations

import torch

# As in every process that computes, and before anything does: a forked child has none of its parent's other threads and
# waits for ever for a team that its parent once had. On ARM oneDNN has a team of its own, whatever torch is told.
torch.set_num_threads(1)
torch.backends.mkldnn.set_flags(False)
