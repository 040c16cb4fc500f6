"""What a fork server puts off of torch is not loaded by what its children need, and whole once it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

from cloister.models import torch_metas

SCRIPT = """
import json, sys
from cloister.forkserver import __main__
from cloister.forkserver import process
import torch

def shape():
    odd = torch.ops.aten.replication_pad1d(torch.ones(1, 2, 5, device="meta"), [1, 1])
    return list(odd.shape)

def loaded():
    return hasattr(sys.modules["torch._meta_registrations"], "__file__")

before = loaded()
from cloister.models import torch_metas
known = torch_metas.load()
print(json.dumps([before, loaded(), known is sys.modules["torch._meta_registrations"], shape()]))
"""


def test_a_fork_server_starts_without_them_and_can_load_them() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True, True, [1, 2, 7]]


def test_where_torch_was_imported_before_nothing_changes() -> None:
    import torch

    before = sys.modules["torch._meta_registrations"]
    torch_metas.put_off()
    assert torch_metas.load() is before is torch._meta_registrations
