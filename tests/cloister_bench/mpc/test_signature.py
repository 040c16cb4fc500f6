from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolError
from cloister_bench.mpc.parties import Input, inputs_of

MAIN = b"""module @jit_f {
  func.func @main(%arg0: tensor<576x1x!pphlo.secret<f32>>, %arg1: tensor<i32>, %arg2: tensor<!pphlo.secret<i32>>,
    %arg3: tensor<1x64xf32>) -> (tensor<576x1x!pphlo.secret<f32>>) {
    %0 = pphlo.dot %arg0, %arg1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
"""


def test_sizes_types_and_secrecy_are_read() -> None:
    assert inputs_of(MAIN) == [
        Input((576, 1), "float32", public=False),
        Input((), "int32", public=True),
        Input((), "int32", public=False),
        Input((1, 64), "float32", public=True),
    ]


def test_draws_have_the_type_asked_for() -> None:
    for kind in inputs_of(MAIN):
        drawn = np.asarray(kind.draw())
        assert drawn.shape == kind.shape and str(drawn.dtype) == kind.dtype
    assert len(set(inputs_of(MAIN))) == 4


@pytest.mark.parametrize("text", [b"", b"func.func @main(%arg0: tensor<?xf32>) -> ()", MAIN.replace(b"i32", b"c64")])
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        inputs_of(text)


@given(st.binary(max_size=300) | st.integers(0, len(MAIN)).map(lambda at: MAIN[:at] + MAIN[at + 1 :]))
def test_any_text_is_refused_or_read(text: bytes) -> None:
    with suppress(ProtocolError):
        assert all(size >= 0 for kind in inputs_of(text) for size in kind.shape)
