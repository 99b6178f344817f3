"""Flops and bytes of programs, against closed forms."""

import functools

import hlo
import jax
from jax import lax
import jax.numpy as jnp
import pytest

LAYOUT = ("NHWC", "HWIO", "NHWC")


def of(function, *shapes):
  """Traces a function of float32 arrays."""
  return jax.jit(function).trace(
    *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
  )


class TestFlops:
  def test_of_products(self):
    """A scan of 5 products of [8, 16] and [16, 16], and one of [8, 8]."""

    def function(x, w):
      x, _ = lax.scan(lambda x, _: (x @ w, None), x, length=5)
      return x @ x.T

    jaxpr = of(function, (8, 16), (16, 16)).jaxpr.jaxpr
    expected = 5 * 2 * 8 * 16 * 16 + 2 * 8 * 16 * 8
    assert hlo.count_products(jaxpr) == expected
    assert hlo.count_convolutions(jaxpr) == 0

  @pytest.mark.parametrize("groups", [1, 3])
  @pytest.mark.parametrize("stride", [1, 2])
  @pytest.mark.parametrize("kernel", [1, 2, 3])
  def test_of_convolutions(self, kernel, stride, groups):
    """Both gradients cost as much as the values."""
    convolve = functools.partial(
      lax.conv_general_dilated,
      window_strides=(stride, stride),
      padding="SAME",
      dimension_numbers=LAYOUT,
      feature_group_count=groups,
    )

    def with_gradients(x, w):
      y, pull_back = jax.vjp(convolve, x, w)
      return y, pull_back(y)

    shapes = (4, 8, 8, 6), (kernel, kernel, 6 // groups, 12)
    side = 8 // stride
    expected = 2 * kernel**2 * (6 // groups) * 12 * 4 * side**2
    alone = of(convolve, *shapes).jaxpr.jaxpr
    assert hlo.count_convolutions(alone) == expected
    three = of(with_gradients, *shapes).jaxpr.jaxpr
    assert hlo.count_convolutions(three) == 3 * expected


class TestBytes:
  @pytest.mark.parametrize(
    ("kind", "size"),
    [("pred", 1), ("s4", 0.5), ("u8", 1), ("f8e4m3fn", 1), ("s16", 2)]
    + [("u16", 2), ("bf16", 2), ("u32", 4), ("f32", 4), ("u64", 8)]
    + [("s64", 8), ("f64", 8), ("c64", 8), ("c128", 16)],
  )
  def test_of_every_kind_of_number(self, kind, size):
    line = f"%x = ({kind}[6,4]{{1,0:T(8,128)}}, token[]) fusion(%y)"
    assert hlo.result_bytes(line) == 24 * size
    assert hlo.result_bytes(f"%x = {kind}[] add(%y, %y)") == max(1, size)

  def test_of_one_kernel(self):
    text = of(lambda x, y: x + 2 * y, (512,), (512,)).lower().compile()
    assert hlo.bytes_moved(text.as_text()) == 3 * 512 * 4

  def test_of_kinds_loops_and_halves(self):
    """A loop of 7 reads and writes; a gather that starts and ends."""
    text = """
%body (b: (s32[], bf16[64])) -> (s32[], bf16[64]) {
  %b = (s32[], bf16[64]{0}) parameter(0)
  %x = bf16[64]{0} get-tuple-element(%b), index=1
  %y = bf16[64]{0} exponential(%x)
  ROOT %t = (s32[], bf16[64]{0}) tuple(%i, %y)
}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %q = pred[4,8]{1,0} compare(%p, %p), direction=GT
  %w = (s32[], bf16[64]{0}) while(%t0), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
  %s = (f32[4,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%p), dimensions={0}
  ROOT %d = f32[8,8]{1,0} all-gather-done(%s)
}
""".replace("\\\n", "")
    compare = 2 * 128 + 32  # float32 twice, and booleans
    loop = 7 * (2 * 64 * 2)
    gather = 128 + 256
    assert hlo.bytes_moved(text) == compare + loop + gather


class TestBound:
  def test_by_flops_or_by_bytes(self):
    traced = of(lambda x, y: x @ y, (256, 64), (64, 128))
    flops, moved = 2 * 256 * 64 * 128, 4 * (256 * 64 + 64 * 128 + 256 * 128)
    slow = hlo.bound(traced, flops_per_s=1e9, bytes_per_s=1e12, devices=1)
    assert slow["bound_by"] == "flops"
    assert slow["ms"] == slow["ms_of_flops"] == pytest.approx(flops / 1e6)
    assert slow["tflop"] == pytest.approx(flops / 1e12)
    assert slow["gb"] == pytest.approx(moved / 1e9)
    assert slow["collectives"] == 0
    fast = hlo.bound(traced, flops_per_s=1e15, bytes_per_s=1e9, devices=2)
    assert fast["bound_by"] == "bytes"
    assert fast["ms"] == pytest.approx(moved / 1e6)
    assert fast["tflop"] == pytest.approx(flops / 2e12)


FOR_A_TPU = """\
%fused (x: f32[8,4]) -> f32[4,4] {
  ROOT %y = f32[4,4]{1,0:T(8,128)} negate(%x)
}

%body (s: (f32[8,4])) -> (f32[8,4]) {
  %a = (f32[4]{0}, f32[4,4]{1,0:T(8,128)S(1)}) fusion(%s), calls=%fused
  %b = f32[4,4]{1,0:T(8,128)S(1)} get-tuple-element(%a), index=1
  %c = f32[4,1]{1,0} custom-call(%b), custom_call_target="tpu_custom_call"
}

ENTRY %main (x: f32[8,4]) -> f32[4,4] {
  %w = (f32[8,4]{1,0}) while(%x), body=%body, \
backend_config={"known_trip_count":{"n":"6"}}
  ROOT %r = f32[4,4]{1,0:T(8,128)} negate(%w)
}
"""


def test_tiles_are_counted():
  """What a fusion makes within itself is in no memory."""
  assert hlo.count_tiles(FOR_A_TPU, 4) == {"memory": 1, "vmem": 1}
