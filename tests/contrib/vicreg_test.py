"""VICReg against NumPy."""

import jax.numpy as jnp
import numpy as np

from nuclr_jax import Pairs, contrib

B, D = 12, 5


def test_vicreg_equals_numpy(x64):
  rng = np.random.default_rng(0)
  z = [rng.normal(size=(B, D)) * rng.uniform(0.3, 2, D) for _ in range(2)]
  variance = covariance = 0.0
  for side in z:
    std = np.sqrt(np.var(side, axis=0, ddof=1) + 1e-4)
    variance += np.mean(np.maximum(0, 1 - std))
    matrix = np.cov(side.T)
    covariance += (np.sum(matrix**2) - np.sum(np.diag(matrix) ** 2)) / D
  expected = 25 * np.mean((z[0] - z[1]) ** 2) + 25 * variance + covariance
  pairs = Pairs(*map(jnp.asarray, z), jnp.arange(B))
  objective = contrib.vicreg()
  loss, _ = objective.apply(*objective.init(), pairs)
  np.testing.assert_allclose(loss, expected, rtol=1e-12)
