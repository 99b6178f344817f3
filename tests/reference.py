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
):
  """One step on plain dicts; returns (loss, d_image, d_text, new state).

  `state` has, per side, `u` by pair id, `u_id` by anchor id, `zeta` and `m` by
  contrast id, and `xi`; never-visited u are absent.
  """
  batch, tau = len(pair_id), temperature
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
    phi = {}
    for i in range(batch):
      terms = [
        math.exp((s[i, j] - s[i, i] - zeta[j]) / tau)
        for j in range(batch)
        if negative(i, j)
      ]
      if terms:
        phi[i] = factor * sum(terms)
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
      epsilon = np.full(batch, math.exp(-state[contrast]["xi"] / tau))
    g = {}
    for j in phi:
      total = 0.0
      for i in phi:
        if not negative(i, j):
          continue
        e = math.exp((s[i, j] - s[i, i] - zeta[j]) / tau)
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
    loss += sum(tau * math.log(epsilon[i] + encoder_u[i]) for i in phi) / batch
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
