"""Descriptions for XLA's compilers of machines that are not available."""

import os
import re

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from nuclr_jax import sharding

# What XLA must know about the GPU, from its data sheet and CUDA's limits.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 150000000000
  cuda_compute_capability { major: 9 feature_extension: 2 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H200"
"""
# An H100 has the same cores, and less memory, which is slower.
H100 = (
  H200.replace("4800000000000", "3350000000000")
  .replace("150000000000", "85000000000")
  .replace("H200", "H100")
)


def prepare() -> None:
  """Configures JAX; must be called before anything touches a device."""
  jax.config.update("jax_platforms", "cpu")
  # XLA chooses among Triton's forms of a matrix product by timing them on the
  # GPU.
  flags = os.environ.get("XLA_FLAGS", "")
  os.environ["XLA_FLAGS"] = (
    f"{flags} --xla_gpu_enable_triton_gemm=false "
    "--xla_force_host_platform_device_count=8"
  )
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")


def mesh(target: str) -> Mesh:
  """Makes a mesh of all devices of a target."""
  return sharding.mesh_of(devices(target))


def devices(target: str) -> list:
  """Returns descriptions of a target's devices, for the compiler only."""
  if cpu := re.fullmatch(r"(?:(\d+)x)?cpu", target):
    return jax.devices("cpu")[: int(cpu[1] or 1)]
  if target == "v5e":  # the smallest slice has four
    return devices("v5e:2x2")[:1]
  gpu = re.fullmatch(r"(?:(\d+)x)?(h[12]00)", target)
  if not gpu:
    return topologies.get_topology_desc(target, platform="tpu").devices
  return topologies.get_topology_desc(
    target,
    platform="cuda",
    topology=f"1x1x{gpu[1] or 1}",
    target_config={"h100": H100, "h200": H200}[gpu[2]],
  ).devices
