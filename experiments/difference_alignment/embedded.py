"""Training runs whose test embeddings are measured: Table 3 and Figure 4."""

import jax
import numpy as np

from experiments import labelled
from experiments.harness import Place, Row, Run, training
from nuclr_jax.lab.evaluate import probe
from nuclr_jax.lab.evaluate.ranking import unit_rows
from nuclr_jax.lab.train import build, loop

PAIRS = 3_000  # of one class and of two classes each, at most
FOLDS = 10
NEIGHBOURS = 8  # as in Table 4
DECIMALS = 1  # of coordinates in a picture


def measure(run: Run, place: Place) -> Row:
  """Trains a run, and adds scores of its test embeddings to its metrics.

  The scores are `verification`; where the test classes are trained on, also
  `nearest_8/top_1` and the `silhouette` of the classes, and the row of seed 0
  has the `points` of a t-SNE.
  """
  config = labelled.make_config(run)
  parts = training.prepare(config, place)
  trained = training.train(config, place, parts)
  ((data, scores),) = parts.data.held_out["test"].others.items()
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    outputs = loop.embedder(parts, mesh)(trained.state).outputs.image
    x, label = unit_rows(outputs(scores.test.image)), scores.test.label
    found, row = {"verification": verification(x, label, seed=run.seed)}, {}
    if scores.train is not None:
      near = probe.nearest_neighbours(
        outputs(scores.train.image),
        scores.train.label,
        x,
        label,
        k=NEIGHBOURS,
      )
      found[f"nearest_{NEIGHBOURS}/top_1"] = near["top1"]
      found["silhouette"] = silhouette(x, label)
      if run.seed == 0:
        row = {"points": flattened(x), "label": label.tolist()}
  named = {f"test/classes_{data}/{name}": y for name, y in found.items()}
  return {"metrics": trained.metrics | named} | row


def verification(x: np.ndarray, label: np.ndarray, *, seed: int = 0) -> float:
  """Computes how often a threshold tells pairs of one class from others.

  The threshold of the cosine is chosen on nine tenths of the pairs and tested
  on the last tenth, for each tenth, as face verification does it.

  Args:
    x: Unit-norm embeddings.
    label: The class of each row.
    seed: The seed of the pairs, as many of one class as of two.

  Returns:
    The accuracy; 1/2 is chance.
  """
  rng = np.random.default_rng(seed)
  rows = np.triu_indices(len(x), 1)
  same = label[rows[0]] == label[rows[1]]
  kinds = [np.flatnonzero(same == kind) for kind in (True, False)]
  count = min(PAIRS, *map(len, kinds))
  pairs = np.concatenate([rng.choice(kind, count, False) for kind in kinds])
  pairs = rng.permutation(pairs)
  cosine = np.sum(x[rows[0][pairs]] * x[rows[1][pairs]], axis=1)
  truth, fold = same[pairs], np.arange(len(pairs)) % FOLDS
  right = [
    (cosine[fold == k] > _threshold(cosine[fold != k], truth[fold != k]))
    == truth[fold == k]
    for k in range(FOLDS)
  ]
  return float(np.mean(np.concatenate(right)))


def _threshold(cosine: np.ndarray, same: np.ndarray) -> float:
  """Returns the threshold above which pairs are best called the same."""
  order = np.argsort(cosine)
  # The gain of calling the first i pairs different, for i = 0, 1, ...
  gain = np.cumsum(np.append(0, np.where(same[order], -1, 1)))
  edges = np.concatenate([[-1.0], cosine[order], [1.0]])
  return float(edges[gain.argmax() :][:2].mean())


def silhouette(x: np.ndarray, label: np.ndarray) -> float:
  """Computes the mean silhouette of the classes, by cosine distance."""
  from sklearn.metrics import silhouette_score  # takes seconds to import

  return float(silhouette_score(x, label, metric="cosine"))


def flattened(x: np.ndarray) -> list[list[float]]:
  """Places rows in the plane by t-SNE."""
  from sklearn.manifold import TSNE

  points = TSNE(init="pca", random_state=0).fit_transform(x)
  return np.round(points.astype(float), DECIMALS).tolist()
