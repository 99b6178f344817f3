"""Per-sample state: u, zeta, temperatures, and a memory of pairs.

`table` reads and writes rows by id, on the device or the host. `denominator`
has the denominator of an anchor: the moving average u and the weight of the
positive; `zeta_rules` the popularities and what moves them; `queue` the latest
pairs, for the rule of that name. Objectives are built from these.

`Sides` are filed by role: in u, temperatures and all of the denominator,
`.image` belongs to images as anchors; in zeta and xi, to images as contrast.
"""

from nuclr_jax.sample_state import denominator, queue, table, zeta_rules

__all__ = ["denominator", "queue", "table", "zeta_rules"]
