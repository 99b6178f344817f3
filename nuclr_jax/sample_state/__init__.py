"""Per-sample state: u, zeta, temperatures, and a memory of pairs.

`table` reads and writes rows by id, in whichever memory they are. `denominator`
keeps the moving average u of every anchor's denominator, `zeta` the
popularities. Rules decide what moves them: `zeta_rules` (with the memory of
`queue`), `temperature_rules` and `own_pair_rules`. Objectives are built from
these.
"""

from nuclr_jax.sample_state import (
  denominator,
  own_pair_rules,
  queue,
  table,
  temperature_rules,
  zeta,
  zeta_rules,
)

__all__ = [
  "denominator",
  "own_pair_rules",
  "queue",
  "table",
  "temperature_rules",
  "zeta",
  "zeta_rules",
]
