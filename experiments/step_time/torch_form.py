"""NUCLR's loss step in PyTorch, dense, as published losses are written.

For comparison only (`pip install -e '.[parity]'`): every [batch, batch] matrix
is formed, u and zeta are tensors that are read and written by index, the
gradient comes from autograd.
"""

import torch

GAMMA, MOMENTUM = 0.8, 0.1


class Side:
  """Holds a side's per-sample state, as anchor and as contrast."""

  def __init__(self, num_pairs: int, device: str):
    def zeros():
      return torch.zeros(num_pairs, device=device)

    self.u, self.visited = zeros(), zeros().bool()
    self.zeta, self.momentum = zeros(), zeros()
    self.xi = torch.zeros((), device=device)


class Nuclr:
  """Computes gradients in `step(image, text, ids)` and moves the state."""

  def __init__(self, *, num_pairs, temperature, zeta_rate, device="cpu"):
    self.n, self.tau, self.rate = num_pairs, temperature, zeta_rate
    self.image, self.text = Side(num_pairs, device), Side(num_pairs, device)

  def step(self, image, text, ids):
    """Returns both gradients; ids must be distinct."""
    image = image.detach().requires_grad_()
    text = text.detach().requires_grad_()
    sim = image @ text.T
    own = torch.diagonal(sim)
    self_pair = torch.eye(len(ids), dtype=torch.bool, device=sim.device)
    loss, g_text = self._anchors(
      self.image, (sim - own[:, None]), self.text, self_pair, ids
    )
    other, g_image = self._anchors(
      self.text, (sim - own).T, self.image, self_pair, ids
    )
    (loss + other).backward()
    self._move(self.image, g_image, ids)
    self._move(self.text, g_text, ids)
    return image.grad, text.grad

  def _anchors(self, side, differences, contrast, self_pair, ids):
    """Returns the surrogate of a side, and its contrast's gradient of zeta."""
    batch, zeta, xi = len(ids), contrast.zeta[ids], contrast.xi
    logits = (differences - zeta[None, :]) / self.tau
    exps = torch.exp(logits.detach()).masked_fill(self_pair, 0.0)
    phi = (self.n - 1) / (batch - 1) * exps.sum(dim=1)
    u = torch.where(
      side.visited[ids], (1 - GAMMA) * side.u[ids] + GAMMA * phi, phi
    )
    side.u[ids], side.visited[ids] = u, True
    weights = exps / (torch.exp(-xi / self.tau) + u)[:, None]
    loss = self.tau * (self.n - 1) / (batch - 1) * (weights * logits).sum()
    own = torch.exp(-zeta / self.tau)
    sums = (exps / (own + u)[:, None]).sum(dim=0)
    gradient = 1 - self.n / batch * (own / (own + u) + sums)
    return loss / batch, gradient

  def _move(self, side, gradient, ids):
    """Does a step of momentum descent on zeta; a first touch takes g."""
    old = side.momentum[ids]
    new = torch.where(
      old == 0, gradient, MOMENTUM * old + (1 - MOMENTUM) * gradient
    )
    side.momentum[ids] = new
    side.zeta[ids] -= self.rate * new
    side.xi = torch.maximum(side.xi, side.zeta[ids].abs().max())
