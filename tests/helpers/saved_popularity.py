"""A file of popularities, as `nuclr popularity` writes it."""

import numpy as np

from nuclr_jax import Sides, popularity
from nuclr_jax.lab.train.warm_start import save_popularity


def save_random(path, source):
  """Saves random ones of all ids of a source, solved at temperature 0.1."""
  sizes, rng = source.sizes, np.random.default_rng(0)
  unused = Sides(np.zeros(sizes.num_pairs), np.zeros(sizes.num_pairs))
  found = popularity.Popularity(
    ids=Sides(*map(np.arange, sizes.ids)),
    zeta=Sides(*(rng.normal(size=n) / 10 for n in sizes.ids)),
    log_u=unused,
    log_denominator=unused,
    residual=0.0,
    iterations=0,
    converged=True,
    num_solved=sizes.num_pairs,
    undetermined=Sides(*(np.zeros(n, bool) for n in sizes.ids)),
  )
  save_popularity(path, found, temperature=0.1, fingerprint=source.fingerprint)
