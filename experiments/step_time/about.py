"""What every benchmark says about where it ran."""

import os
import platform

import jax


def machine() -> dict:
  """Device, processor and versions, for the JSON."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "machine": platform.processor() or platform.machine(),
    "cores": len(os.sched_getaffinity(0)),
    "jax": jax.__version__,
  }
