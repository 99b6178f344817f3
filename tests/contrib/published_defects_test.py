"""What released code gets wrong, with the numbers of docs/published_code.md.

The golden numbers are the official code's; formulas here are plain NumPy.
"""

import itertools
import math

from normalizers import BATCH, GIVEN, TAU, near
import numpy as np
import pytest

from nuclr_jax import objectives

IMAGE, TEXT = (GIVEN[f"inputs/{x}"][0] for x in ("image", "text"))
SIMILARITY, AWAY = IMAGE @ TEXT.T, ~np.eye(BATCH, dtype=bool)


def log_v(similarity, tau, epsilon, count):
  """log(epsilon + sum_j exp(h_ij) / count), and h without the positives."""
  own = np.diag(similarity)[:, None]
  h = ((similarity - own) / tau)[AWAY].reshape(BATCH, BATCH - 1)
  return np.log(epsilon + np.exp(h).sum(1) / count), h


@pytest.mark.parametrize(
  "case, name, count, official, correct",
  [
    ("fastclip_released", "fastclip_released", BATCH - 1, 12.199, 10.260),
    ("drrho_clip", "drrho_clip/0", BATCH, 10.476, 9.915),
  ],
)
def test_the_temperatures_derivative_counts_a_term_twice(
  case, name, count, official, correct
):
  """The loss is a mean of both sides; the official one sums their H."""
  epsilon, rho = (float(GIVEN[f"{case}/{x}"]) for x in ("eps", "rho"))

  def loss(tau):
    sides = (SIMILARITY, SIMILARITY.T)
    means = [log_v(s, tau, epsilon, count)[0].mean() for s in sides]
    return tau * (np.mean(means) + rho)

  difference = (loss(TAU + 1e-6) - loss(TAU - 1e-6)) / 2e-6
  assert difference == pytest.approx(correct, abs=1e-3)
  found = -GIVEN[f"{name}/grad_logit_scale"] / TAU**2
  assert found == pytest.approx(official, abs=1e-3)
  summed = loss(TAU) / TAU
  for s in (SIMILARITY, SIMILARITY.T):
    value, h = log_v(s, TAU, epsilon, count)
    summed -= (np.exp(h - value[:, None]) * h).sum(1).mean() / (BATCH - 1)
  assert found == pytest.approx(summed, rel=1e-12)


def test_drrho_subtracts_the_positive_twice():
  """In `FastCLIPLoss`, log v is too low by the similarity of the pair.

  Its gradients are those of such weights. The temperature's is right, though:
  both of its terms are means over the sides.
  """
  given = lambda name: GIVEN[f"fastclip_in_drrho/{name}"]
  log_mean, mean, slope = float(given("rho")), 0.0, 0.0
  for s, anchor in ((SIMILARITY, "I"), (SIMILARITY.T, "T")):
    expected, h = log_v(s, TAU, float(given("eps")), BATCH)
    found = given(f"u_{anchor}")
    np.testing.assert_allclose(expected - found, np.diag(s), rtol=1e-9)
    w = np.exp(h - found[:, None]) / (BATCH - 1)
    log_mean += found.mean() / 2
    mean += (w * h).sum(1).mean()
    of_side = np.diag(-w.sum(1))
    of_side[AWAY] = w.ravel()
    slope += (of_side if anchor == "I" else of_side.T) / BATCH
  assert np.diag(SIMILARITY).max() == pytest.approx(0.98, abs=5e-3)
  near(slope @ TEXT, given("grad_image"))
  near(slope.T @ IMAGE, given("grad_text"))
  by_tau = log_mean - mean / 2
  assert by_tau == pytest.approx(11.489, abs=1e-3)
  near(-(TAU**2) * by_tau, given("grad_logit_scale"))
  near(TAU * (log_mean + mean), given("loss"))


def test_a_gamma_of_10_makes_the_second_visit_nan():
  """SCENT's command for its baseline; the first visit takes the estimate."""
  first, _ = log_v(SIMILARITY, TAU, 1e-6, BATCH)
  with np.errstate(invalid="ignore"):
    old = np.log(1 - 10.0) + first
    second = np.logaddexp(old, math.log(10.0) + first)
  assert np.all(np.isfinite(first)) and np.all(np.isnan(second))
  with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\].*got 10"):
    objectives.sogclr(num_pairs=40, gamma=10.0)


def test_amorlip_without_its_positive():
  """`pos_coef=0` leaves it in Z of the loss: the sum of Z / lambda is not 2.

  So it pushes the pair apart, and its gradient is 10 times as large.
  """
  terms, total = np.exp(SIMILARITY / TAU), 0.0
  official, correct = -2 * np.eye(BATCH), -2 * np.eye(BATCH)
  for side, x in enumerate((terms, terms.T)):
    w = x / (x * AWAY).sum(1)[:, None]
    total += w.sum(1).mean()
    official += w.T if side else w
    correct += (w * AWAY).T if side else w * AWAY
  assert total == pytest.approx(10.7, abs=0.05)
  for slope, norm in ((official, 5.9), (correct, 0.59)):
    gradient = np.concatenate([slope @ TEXT, slope.T @ IMAGE]) / BATCH
    assert np.linalg.norm(gradient) == pytest.approx(norm, rel=0.01)


def test_amorlips_loss_has_no_network_of_now():
  """The README's options: the sum of Z / lambda tells which lambda it is."""
  given = lambda name: GIVEN[f"amorlip/readme/{name}"]
  own = np.diag(SIMILARITY).mean() / TAU
  official = given("loss") / TAU + 2 * own - given("rho")
  weight = np.where(AWAY, 1.0, given("pos_coef"))
  for name, expected in (("lambda", official), ("net", 1.4e6)):
    total = 0.0
    for s, anchor in ((SIMILARITY, "I"), (SIMILARITY.T, "T")):
      z = (weight * np.exp(s / TAU)).sum(1)
      total += (z / np.exp(given(f"log_{name}_{anchor}"))).mean()
    rel = 1e-9 if name == "lambda" else 0.02
    assert total == pytest.approx(expected, rel=rel)
  assert official == pytest.approx(2 / (1 - given("beta")), abs=5e-4)


@pytest.mark.parametrize(
  "side, anchor, spread", [("image", "I", 0.084), ("text", "T", 0.051)]
)
def test_tempnets_temperatures_by_what_is_dropped(side, anchor, spread):
  """Their standard deviation over all draws of dropout, by their mean."""
  network = lambda name: GIVEN[f"tempnet/params/{side}/{name}"]
  low, high = (float(GIVEN[f"tempnet/tau_{x}"]) for x in ("min", "max"))
  s = lambda x: 1 / (1 + np.exp(-x))
  prototypes = network("prototypes")
  prototypes = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
  x = IMAGE if side == "image" else TEXT
  z = s(x @ network("proj_weight").T + network("proj_bias"))

  def temperatures(kept):
    q = (z * kept) @ prototypes.T
    p = np.exp(q / np.exp(network("scaler")))
    p /= p.sum(1, keepdims=True)
    terms = (p - 1 / len(prototypes)) * s(q) * network("linear_1_weight")
    return low + (high - low) * s(network("linear_1_bias") + terms.sum(1))

  near(temperatures(1.0), GIVEN[f"tempnet/0/tau_{anchor}"])
  draws = itertools.product((0.0, 2.0), repeat=z.shape[1])
  taus = np.stack([temperatures(np.array(kept)) for kept in draws])
  found = np.mean(taus.std(0) / taus.mean(0))
  assert found == pytest.approx(spread, abs=5e-4)


@pytest.mark.parametrize(
  "case, official, correct",
  [("clip", 9.372, 10.490), ("adaptive", -11.834, -10.500)],
)
def test_amorlips_derivative_by_the_temperature(case, official, correct):
  """Without `--adaptive_tau` it lacks log lambda; with it, Z / lambda - 1.

  With it, rho is compared with log lambda - log B.
  """
  given = lambda name: GIVEN[f"amorlip/{case}/{name}"]
  weight = np.where(AWAY, 1.0, given("pos_coef"))
  sides = ((SIMILARITY, "I"), (SIMILARITY.T, "T"))

  def terms(tau):  # Z / lambda and log lambda of both sides' anchors
    for s, anchor in sides:
      log_lambda = given(f"log_lambda_{anchor}")
      yield (weight * np.exp(s / tau)).sum(1) / np.exp(log_lambda), log_lambda

  def loss(tau):
    means = [(z + log_lambda - 1).mean() for z, log_lambda in terms(tau)]
    own = np.diag(SIMILARITY).mean()
    offset = 2 * math.log(BATCH) if case == "adaptive" else 0.0
    return tau * (sum(means) + given("rho") - offset) - 2 * own

  difference = (loss(TAU + 1e-6) - loss(TAU - 1e-6)) / 2e-6
  assert difference == pytest.approx(correct, abs=1e-3)
  found = -given("grad_logit_scale") / TAU**2
  assert found == pytest.approx(official, abs=1e-3)
  own = np.diag(SIMILARITY) / TAU
  lacking = {
    "clip": lambda z, log_lambda: log_lambda - own,
    "adaptive": lambda z, log_lambda: z - 1,
  }[case]
  missed = sum(lacking(*x).mean() for x in terms(TAU))
  assert difference - found == pytest.approx(missed, rel=1e-6)


def test_exponentials_of_similarities_overflow():
  """AmorLIP's Z at 1 / tau = 100, and the raw logits of SCENT's `xc`."""
  largest = math.log(np.finfo(np.float32).max)
  assert largest / 100 == pytest.approx(0.887, abs=5e-4)
  with np.errstate(over="ignore"):
    assert np.isinf(np.exp(np.float32(89)))


def test_neuclips_two_readings():
  """How far the encoders' gradients differ if alpha is not constant.

  The value is the same, and the derivative by the temperature has less than
  half the size.
  """
  given = lambda case, name: GIVEN[f"neuclip_formula/{case}/{name}"]
  for name in ("loss", "alpha_I", "alpha_T"):
    near(given("attached", name), given("detached", name))
  ratio = given("attached", "grad_tau") / given("detached", "grad_tau")
  assert ratio == pytest.approx(0.45, abs=5e-3)
  of = lambda case: np.stack(
    [given(case, f"grad_{x}") for x in ("image", "text")]
  )
  constant = of("detached")
  difference = np.linalg.norm(of("attached") - constant)
  share = difference / np.linalg.norm(constant)
  assert share == pytest.approx(0.18, abs=5e-3)
