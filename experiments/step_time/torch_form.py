"""NUCLR's loss step in PyTorch, dense, written as published losses are.

It is for comparison only (`pip install -e '.[parity]'`): every [batch, batch]
matrix is formed, u and zeta are tensors that are read and written by index, and
the gradient comes from autograd.
"""

import torch

GAMMA, MOMENTUM = 0.8, 0.1


class Side:
  """The per-sample state of a side, as anchor and as contrast."""

  def __init__(self, num_pairs: int, device: str):
    def zeros():
      return torch.zeros(num_pairs, device=device)

    self.u, self.visited = zeros(), zeros().bool()
    self.zeta, self.momentum = zeros(), zeros()
    self.xi = torch.zeros((), device=device)


class Nuclr:
  """NUCLR's loss; `step(image, text, ids)` updates its state."""

  def __init__(self, *, num_pairs, temperature, zeta_rate, device="cpu"):
    self.n, self.tau, self.rate = num_pairs, temperature, zeta_rate
    self.image, self.text = Side(num_pairs, device), Side(num_pairs, device)

  def step(self, image, text, ids):
    """Returns the gradients of image and text; ids must be distinct."""
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
    """Returns the surrogate loss of a side, and the gradient of contrast zeta.

    The surrogate has the gradient of the loss, not its value: the weights are
    detached from the graph.
    """
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
    """Does a step of momentum descent on zeta.

    The momentum of a row that was never updated starts at the gradient.
    """
    old = side.momentum[ids]
    new = torch.where(
      old == 0, gradient, MOMENTUM * old + (1 - MOMENTUM) * gradient
    )
    side.momentum[ids] = new
    side.zeta[ids] -= self.rate * new
    side.xi = torch.maximum(side.xi, side.zeta[ids].abs().max())
