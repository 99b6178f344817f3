"""The arms of the study: their objectives, and what is tuned in them.

Every arm is tuned over as many values of one number: its temperature, or what
stands for it. `SigLIP` has the scale 1 / τ. The individual temperatures of
iSogCLR start at τ: a pair is seen four times, so they hardly leave their first
value. FastCLIP-v3 has one learned temperature, which moves in every step and
ends where ρ says; so ρ is tuned, and that of TempNet. Everything else is as in
`configs/glyphs.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TAU, RHO = "τ", "ρ"
GRIDS = {TAU: (0.03, 0.05, 0.08, 0.12), RHO: (1.0, 2.0, 3.0, 4.0)}
MIDDLE = 0.08  # at which the learning rate is tuned

# The weight of the positive in InfoNCE's denominator, (n - 1) / (B - 1) at half
# size and batch 128.
LIKE_INFONCE = 1_000.0
# CyCLIP's second half, of which SogCLR's configs have none.
CYCLIC = dict(weight=1.0, in_modal=0.05, cross_modal=0.05)
# DRRho's constant 1e-4 in the mean of a batch, as a weight of the positive, see
# `objectives.relative_to`.
DRRHO_POSITIVE = 1e-4 * 127_999 * 128 / 127
# The released schedule of the rate of ζ, frozen for a sixth of the run.
FALLING = dict(freeze_epochs=4 / 6, decay="cosine", drops=(0.5, 22 / 30))


class Arm(NamedTuple):
  """An objective: a config of `configs/icons.py` and its changes.

  `change(value)` makes changes of the config's objective from the value of the
  tuned number.
  """

  label: str
  config: str
  change: Callable[[float], Mapping[str, Any]]
  tuned: str = TAU  # a key of `GRIDS`
  # Changes of the config that are outside of its objective.
  more: Mapping[str, Any] = {}


def _at(tau: float, **more: Any) -> dict[str, Any]:
  return {"temperature": tau} | more


def _adaptive(log_alpha: float) -> dict[str, Any]:
  """SCENT's rule as the first of these runs had it: no least denominator."""
  return dict(name="adaptive", log_alpha=log_alpha, epsilon=0.0)


def _zeta(tau: float, **rule: Any) -> dict[str, Any]:
  return _at(tau, zeta=rule)


def released(tau: float) -> dict[str, Any]:
  """Makes the objective of NUCLR's released code.

  The published numbers (τ = 0.01) are kept in units of the temperature: ζ
  starts at -5 τ, and moves by 5e-5 τ and 5e-4 τ.

  Args:
    tau: The temperature.

  Example:
    >>> released(0.08)["zeta"]["init"]
    -0.4
  """
  return _at(
    tau,
    name="nuclr_variant",
    zeta=dict(
      name="batch",
      estimator="official",
      init=-5 * tau,
      momentum=0.1,
      rate=dict(
        image=dict(value=5e-5) | FALLING,
        text=dict(value=5e-4) | FALLING,
      ),
    ),
    positive=dict(name="released"),
  )


EXACT = {"refresh.every_epochs": 1.0, "refresh.max_pairs": 16_384}
FIRST = ("clip", "sogclr", "nuclr_queue", "nuclr_batch", "nuclr_zero")
ARMS = {
  "clip": Arm("CLIP", "clip", _at),
  "sogclr": Arm("SogCLR", "sogclr", _at),
  "nuclr_queue": Arm("NUCLR, queue", "nuclr", _at),
  "nuclr_batch": Arm(
    "NUCLR, batch", "nuclr", lambda x: _zeta(x, name="batch", rate=0.14)
  ),
  "nuclr_zero": Arm("NUCLR, ζ = 0", "nuclr", lambda x: _zeta(x, name="fixed")),
  "nuclr_counts": Arm(
    "NUCLR, ζ = τ log counts",
    "nuclr",
    lambda x: _zeta(x, name="fixed"),
    more={"warm_start": "counts"},
  ),
  "nuclr_exact": Arm(
    "NUCLR, exact ζ each epoch",
    "nuclr",
    lambda x: _zeta(x, name="fixed"),
    more=EXACT,
  ),
  "nuclr_exact_u": Arm(  # see `exact_u`
    "NUCLR, ζ = 0, exact u each epoch",
    "nuclr",
    lambda x: _zeta(x, name="fixed"),
  ),
  "nuclr_released": Arm("NUCLR, released code", "nuclr", released),
  "sogclr_positive": Arm(
    "SogCLR, InfoNCE's positive",
    "sogclr",
    lambda x: _at(x, positive_weight=LIKE_INFONCE),
  ),
  "sogclr_batch": Arm("SogCLR, γ = 1", "sogclr", lambda x: _at(x, gamma=1.0)),
  "nuclr_gamma_one": Arm(
    "NUCLR, queue, γ = 1", "nuclr", lambda x: _at(x, gamma=1.0)
  ),
  "siglip": Arm("SigLIP", "siglip", lambda x: {"init_scale": 1 / x}),
  "cyclip": Arm("CyCLIP", "cyclip", _at),
  "sogclr_cyclic": Arm(
    "SogCLR, cyclic consistency",
    "sogclr",
    _at,
    more={"terms": {"cyclic_consistency": CYCLIC}},
  ),
  "sogclr_batch_cyclic": Arm(
    "SogCLR, γ = 1, cyclic consistency",
    "sogclr",
    lambda x: _at(x, gamma=1.0),
    more={"terms": {"cyclic_consistency": CYCLIC}},
  ),
  "debiased": Arm("DCL (debiased)", "debiased", _at),
  "isogclr": Arm("iSogCLR", "isogclr", _at),
  "fastclip_v3": Arm(
    "FastCLIP-v3",
    "fastclip_v3",
    lambda x: {"temperature": {"rho": x}},
    tuned=RHO,
  ),
  "scent": Arm("SCENT", "scent", lambda x: _at(x, gamma=_adaptive(10.0))),
  "scent_slow": Arm(
    "SCENT, log α = 4",
    "scent",
    lambda x: _at(x, gamma=_adaptive(4.0)),
  ),
  "nuclr_scent": Arm(
    "NUCLR, SCENT's u",
    "nuclr",
    lambda x: _at(x, gamma=_adaptive(4.0)),
  ),
  "nuclr_scent_ten": Arm(
    "NUCLR, SCENT's u, log α = 10",
    "nuclr",
    lambda x: _at(x, gamma=_adaptive(10.0)),
  ),
  "clip_tokens": Arm("CLIP, tokens (SuperCLIP)", "clip,tokens", _at),
  "sogclr_tokens": Arm("SogCLR, tokens", "sogclr,tokens", _at),
  "sogclr_batch_tokens": Arm(
    "SogCLR, γ = 1, tokens",
    "sogclr,tokens",
    lambda x: _at(x, gamma=1.0),
  ),
  "tempnet": Arm(
    "TempNet", "tempnet", lambda x: {"temperature": {"rho": x}}, tuned=RHO
  ),
  "neuclip": Arm("NeuCLIP", "neuclip", _at),
  "amorlip": Arm("AmorLIP", "amorlip", _at),
  "drrho": Arm(
    "DRRho, relative to CLIP",
    "drrho",
    lambda x: _at(x, positive_weight=DRRHO_POSITIVE),
  ),
}
