"""Scores candidates with planted errors, and says what scores find."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
import numpy as np
from scipy import stats

from experiments.filtering import errors, plan
from experiments.filtering.data import Task
from experiments.harness import Row
from experiments.icons.planted import scores as found_by
from nuclr_jax.lab.data.shards import InMemory
from nuclr_jax.lab.evaluate import choose, pair_scores

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)  # that are kept, of the curves
PARTITIONS = 10
ONCE = "each text once"
AFTER = -1e3  # is added to the score of a copy


def planted(
  task: Task, kind: str, words, seed: int
) -> tuple[Sequence[str], Bool[np.ndarray, "pairs"]]:
  """Gives some candidates wrong captions, and says which ones."""
  captions = task.candidates.caption
  return errors.plant(captions, kind, words["wrong"], seed, task.phrases)


def score_all(
  images, embed_text, task: Task, words, seed: int
) -> tuple[Row, dict[str, Bool[np.ndarray, "pairs"]]]:
  """Scores the candidates with errors of each kind.

  Args:
    images: Embeddings of the candidates' images.
    embed_text: Embeds captions.
    task: The data.
    words: The values of the run.
    seed: Draws the errors, and what scores draw.

  Returns:
    For each kind and score, how well it finds the errors; and which candidates
    those of `plan.CHOSEN` keep, by `plan.kept_of`.
  """
  rows, kept = {}, {}
  for kind in errors.KINDS:
    found, wrong = planted(task, kind, words, seed)
    texts, text_id = np.unique(found, return_inverse=True)
    text = embed_text([str(x) for x in texts])[text_id]
    scores = pair_scores_of(images, text, text_id, words, seed)
    rows[kind] = {
      name: of_errors | compared(scores[name], scores[plan.EXACT], wrong)
      for name, of_errors in found_by(
        {name: -x for name, x in scores.items()}, wrong
      ).items()
    }
    count, everyone = int(np.sum(~wrong)), np.ones_like(wrong)
    kept |= {
      plan.kept_of(kind, name): choose.best(scores[name], count, everyone)
      for name in plan.CHOSEN
    }
  return rows, kept


def pair_scores_of(
  image, text, text_id, words, seed: int
) -> dict[str, Float[np.ndarray, "pairs"]]:
  """Computes all scores, by their names in the tables."""
  n, tau = len(image), words["tau"]
  sides = InMemory(image), InMemory(text)

  def likelihood(size: int, count: int):
    return np.mean(
      [
        pair_scores.negcliploss(
          *sides, temperature=tau, batch_size=size, seed=(seed, i)
        )
        for i in range(count)
      ],
      axis=0,
    )

  def exact(sample):
    some = sides if sample is None else [x.subset(sample) for x in sides]
    found = pair_scores.balance(*some, temperature=tau, num_pairs=n)
    return tau * pair_scores.log_weight_of_positive(
      found, *sides, temperature=tau, sample=sample
    )

  order = np.random.default_rng([seed, 7]).permutation(n)
  scores = {
    plan.SIMILARITY: pair_scores.similarity(*sides),
    f"{plan.LIKELIHOOD}, 1 small batch": likelihood(words["small"], 1),
    f"{plan.LIKELIHOOD}, 10 small batches": likelihood(
      words["small"], PARTITIONS
    ),
    plan.LIKELIHOOD: likelihood(n, 1),
    f"{plan.EXACT}, of a sample": exact(np.sort(order[: words["sample"]])),
    plan.EXACT: exact(None),
  }
  for name in (plan.SIMILARITY, plan.EXACT):
    is_first = choose.first_of_each(text_id, scores[name])
    scores[f"{name}, {ONCE}"] = scores[name] + np.where(is_first, 0, AFTER)
  return scores


def compared(score, exact, wrong) -> Row:
  """Says how many kept pairs are wrong, and how near exact weights are.

  "overlap" is the share of the pairs that exact weights keep, which the score
  keeps, too, where as many are left out as are wrong.
  """
  order = np.argsort(-score, kind="stable")
  counts = [round(share * len(order)) for share in SHARES]
  right = len(order) - int(wrong.sum())
  of_exact = np.argsort(-exact, kind="stable")[:right]
  both = np.intersect1d(order[:right], of_exact)
  return {
    "wrong": [round(float(wrong[order[:x]].mean()), 5) for x in counts],
    "rank correlation": round(
      float(stats.spearmanr(score, exact).statistic), 5
    ),
    "overlap": round(len(both) / right, 5),
  }
