import mmap
import os
import subprocess
import sys

from cloister.compute.layout import BLOCK_TOKENS as KERNELS_BLOCK_TOKENS
from cloister_bench.memory import BLOCK_TOKENS, descendants, kv_bytes, memory_of

TWO_GENERATIONS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_descendants_are_found_over_generations() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_GENERATIONS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= descendants(os.getpid())
        assert descendants(child.pid) == {grandchild}
        child.stdin.close()
    assert not {child.pid, grandchild} & descendants(os.getpid())


def test_memory_taken_is_memory_seen() -> None:
    before = memory_of(os.getpid())
    taken = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.write(b"\1" * len(taken))
    after = memory_of(os.getpid())
    taken.close()
    assert after.private - before.private > 60 << 20


def test_kv_bytes_are_whole_blocks_of_the_models_shape() -> None:
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    assert kv_bytes(shape, 16) == kv_bytes(shape, 1) == 2 * 2 * 30 * 3 * 64 * 16
    assert kv_bytes(shape, 17) == 2 * 2 * 30 * 3 * 64 * 32
    assert kv_bytes({}, 16) is None
    assert BLOCK_TOKENS == KERNELS_BLOCK_TOKENS
