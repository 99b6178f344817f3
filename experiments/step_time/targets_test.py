"""What XLA must compile for a GPU, here without one."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

# XLA fuses what it can into matrix products, and must not abort. Two results
# keep it from moving the slice to the input.
STRIDED = """
import os
from experiments.step_time import targets
targets.prepare()
os.environ["XLA_FLAGS"] += (
  " --xla_gpu_enable_triton_gemm=true --xla_gpu_autotune_level=0"
)
from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from nuclr_jax.lab.models.layers import Conv

conv = Conv(
  256, 512, 1, stride=2, dtype=jnp.dtype("bfloat16"), rngs=nnx.Rngs(0)
)
everywhere = NamedSharding(targets.mesh("h200"), PartitionSpec())
x = jax.ShapeDtypeStruct((8, 16, 16, 256), "bfloat16", sharding=everywhere)
jax.jit(lambda x: (2 * x, conv(2 * x))).lower(x).compile()
print("compiled")
"""


# XLA forgets JAX's presets of precision where devices share a product. What its
# library calls multiply must be bfloat16 then, or products are TF32.
PRODUCTS = """
import re, sys
from experiments.step_time import targets
targets.prepare()
import jax
from nuclr_jax import objectives
from tests.helpers.make_step import trace_step

mesh = targets.mesh(sys.argv[1])
with jax.set_mesh(mesh):
  traced = trace_step(objectives.clip(), mesh, 512, 64)
text = traced.lower().compile().as_text()
types = dict(re.findall(r"%([\\w.-]+) = (\\w+)\\[", text))
calls = re.findall(r"custom-call\\(%([\\w.-]+), %([\\w.-]+).*__cublas", text)
print(len(calls), *{types[name] for call in calls for name in call})
"""
needs_compilers = pytest.mark.skipif(
  not any(map(importlib.util.find_spec, PLUGINS)),
  reason="needs the extra `compilers`",
)


def output_of(code, *words):
  """What a process of its own prints."""
  done = subprocess.run(
    [sys.executable, "-c", code, *words],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout.split()


@needs_compilers
def test_a_strided_convolution_compiles():
  assert output_of(STRIDED) == ["compiled"]


@needs_compilers
@pytest.mark.parametrize("target", ["h100", "2xh100"])
def test_products_of_the_loss_are_of_bfloat16(target):
  count, *types = output_of(PRODUCTS, target)
  assert int(count) >= 3 and types == ["bf16"]
