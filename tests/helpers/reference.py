"""NUCLR in NumPy loops, straight from the definition: an independent oracle."""

import math

import numpy as np


def nuclr_step(
  image,
  text,
  pair_id,
  image_id,
  text_id,
  state,
  *,
  n,
  temperature,
  gamma,
  rate,
  momentum,
  estimator="unbiased",
  center=True,
  own_pair="xi",
  anchor_average="pair",
  own_weight=1.0,
  rho=None,
  tau_rate=0.0,
  tau_momentum=0.0,
  tau_range=(0.0, math.inf),
):
  """One step on plain dicts; returns (loss, d_image, d_text, new state).

  `state` has, per side, `u` by pair id, `u_id` by anchor id, `zeta` and `m` by
  contrast id, and `xi`; never-visited u are absent. `own_pair="none"` leaves
  the own pair out, as SogCLR does. With `rho`, `tau` and `tau_m` by pair id are
  temperatures that move, and `tau_gradient` their gradients, averaged.
  """
  batch = len(pair_id)
  terms = n - 1 if own_pair == "none" else n
  factor = (n - 1) / (batch - 1)
  sim = image @ text.T
  new = {key: {k: dict(v) if isinstance(v, dict) else v for k, v in d.items()}
         for key, d in state.items()}  # fmt: skip
  loss, d_sim = 0.0, np.zeros((batch, batch))

  def negative(i, j):
    return image_id[i] != image_id[j] and text_id[i] != text_id[j]

  sides = dict(
    image=(sim, "text", text_id, image_id),
    text=(sim.T, "image", image_id, text_id),
  )
  for side, (s, contrast, contrast_id, anchor_id) in sides.items():
    zeta = np.array([state[contrast]["zeta"].get(c, 0.0) for c in contrast_id])
    taus = state[side].get("tau", {})
    tau = np.array([taus.get(i, temperature) for i in pair_id])
    phi = {}
    for i in range(batch):
      exponentials = [
        math.exp((s[i, j] - s[i, i] - zeta[j]) / tau[i])
        for j in range(batch)
        if negative(i, j)
      ]
      if exponentials:
        phi[i] = factor * sum(exponentials)
    for table, ids in (("u", pair_id), ("u_id", anchor_id)):
      for key in {ids[i] for i in phi}:
        estimate = np.mean([phi[i] for i in phi if ids[i] == key])
        old = state[side][table].get(key)
        moved = (
          estimate if old is None else (1 - gamma) * old + gamma * estimate
        )
        new[side][table][key] = moved
    u = {i: new[side]["u"][pair_id[i]] for i in phi}
    encoder_u = u
    if anchor_average == "id":
      encoder_u = {i: new[side]["u_id"][anchor_id[i]] for i in phi}
    own = np.exp(-zeta / tau)
    epsilon = own
    if own_pair == "xi":
      epsilon = np.exp(-state[contrast]["xi"] / tau)
    elif own_pair == "none":
      epsilon = np.zeros(batch)
    epsilon = own_weight * epsilon
    log_d = {i: math.log(epsilon[i] + encoder_u[i]) for i in phi}
    g = {}
    for j in phi:
      total = 0.0
      for i in phi:
        if not negative(i, j):
          continue
        e = math.exp((s[i, j] - s[i, i] - zeta[j]) / tau[i])
        total += e / (own[i] + u[i])
        weight = factor * e / (epsilon[i] + encoder_u[i]) / batch
        target = d_sim if side == "image" else d_sim.T
        target[i, j] += weight
        target[i, i] -= weight
      w_own = own[j] / (own[j] + u[j])
      g[j] = dict(
        unbiased=1 - w_own - factor * total,
        paper=1 - n / batch * (w_own + factor * total),
        official=1 - n / batch * (w_own + total),
      )[estimator]
    offset = 0.0 if rho is None else rho - math.log(terms)
    loss += sum(tau[i] * (log_d[i] + offset) for i in phi) / batch
    if rho is not None:
      move_temperatures(
        new[side],
        pair_id,
        tau,
        {
          i: log_d[i]
          + offset
          - kl_term(
            i, s, zeta, tau[i], negative, factor, epsilon[i], math.exp(log_d[i])
          )
          for i in phi
        },
        batch,
        tau_rate,
        tau_momentum,
        tau_range,
      )
    mean = np.mean(list(g.values())) if center and g else 0.0
    if rate:
      for key in {contrast_id[j] for j in g}:
        step = np.mean([g[j] - mean for j in g if contrast_id[j] == key])
        old = state[contrast]["m"].get(key, 0.0)
        m = step if old == 0 else momentum * old + (1 - momentum) * step
        new[contrast]["m"][key] = m
        zeta_old = state[contrast]["zeta"].get(key, 0.0)
        new[contrast]["zeta"][key] = zeta_old - rate * m
    here = [abs(new[contrast]["zeta"].get(c, 0.0)) for c in contrast_id]
    new[contrast]["xi"] = max(state[contrast]["xi"], *here)
  return loss, d_sim @ text, d_sim.T @ image, new


def kl_term(i, s, zeta, tau, negative, factor, epsilon, denominator):
  """sum_j w_ij L_ij over the negatives and the own pair."""
  total = 0.0
  for j in range(len(s)):
    if negative(i, j):
      logit = (s[i, j] - s[i, i] - zeta[j]) / tau
      total += factor * math.exp(logit) / denominator * logit
  if epsilon > 0:
    total += epsilon / denominator * math.log(epsilon)
  return total


def move_temperatures(side, pair_id, tau, g, batch, rate, momentum, tau_range):
  """m <- beta m + (1 - beta) clip(g), tau <- clip(tau - rate m), by pair."""
  side["tau_gradient"] = sum(g.values()) / batch
  for key in {pair_id[i] for i in g}:
    rows = [i for i in g if pair_id[i] == key]
    step = np.mean([min(max(g[i], -5.0), 5.0) for i in rows])
    m = momentum * side["tau_m"].get(key, 0.0) + (1 - momentum) * step
    side["tau_m"][key] = m
    side["tau"][key] = min(
      max(tau[rows[0]] - rate * m, tau_range[0]), tau_range[1]
    )


def recall_by_loop(image, text, images, texts, pairs, k):
  """Recall of any right answer, query by query; `pairs` are (image, text) ids.

  Equal images and equal texts are one candidate, the most similar of them.
  """
  both = []
  for queries, gallery, mine, theirs, right in (
    (image, text, images, texts, pairs),
    (text, image, texts, images, {(t, i) for i, t in pairs}),
  ):
    found = []
    for x, own in zip(queries, mine, strict=True):
      best = {}
      for y, other in zip(gallery, theirs, strict=True):
        best[other] = max(best.get(other, -np.inf), float(np.dot(x, y)))
      order = sorted(best, key=best.get, reverse=True)
      found.append(any((own, other) in right for other in order[:k]))
    both.append(np.mean(found))
  return tuple(both)
