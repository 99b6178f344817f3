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


@pytest.mark.skipif(
  not any(map(importlib.util.find_spec, PLUGINS)),
  reason="needs the extra `compilers`",
)
def test_a_strided_convolution_compiles():
  done = subprocess.run(
    [sys.executable, "-c", STRIDED], cwd=ROOT, capture_output=True, text=True
  )
  assert done.stdout == "compiled\n", done.stderr[-2000:]
