"""Retrieval corrected for hubs, candidates that are near to every query.

The queries of a bank, which are training images and texts, say which candidates
are hubs. Scores are sim - penalty, where no query of the test has a part in the
penalty of a candidate.
"""

from collections.abc import Callable, Sequence
import functools
import math

from jaxtyping import Float
import numpy as np

from nuclr_jax import popularity
from nuclr_jax.lab import progress
from nuclr_jax.lab.data.source import ImageTextSet, Source
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator, embed_pairs
from nuclr_jax.lab.evaluate.retrieval import scores_of
from nuclr_jax.types import Metrics, Pairs, Sides, each

QUERIES = 16_384  # training pairs in the bank
CHUNK = 2**22  # similarities to the bank that are held at once: 16 MiB
NEAREST = 10  # the k of CSLS
STRENGTH = 0.5  # of zeta, by default
CSLS, ZETA = "csls", "zeta"
Method = str | float  # CSLS, ZETA, or a strength of zeta
# A model -> its embeddings of the bank; the anchors' denominators, for zeta.
MakeBank = Callable[[Embed], tuple[Pairs, Sides | None]]


def make_bank(train: Source, *, temperature: float | None = None) -> MakeBank:
  """Makes a function that embeds training pairs once for all sets.

  Args:
    train: The training pairs; `QUERIES` of them are used, always the same ones.
    temperature: The temperature at which to solve for the popularities of these
      pairs; None = do not solve, as CSLS does not need them.
  """

  @functools.lru_cache(maxsize=1)
  def bank(embed: Embed):
    n = train.sizes.num_pairs
    ids = np.random.default_rng(0).permutation(n)[:QUERIES]
    pairs = embed_pairs(embed, train, np.sort(ids))
    if temperature is None:
      return pairs, None
    solved = popularity.solve(
      pairs.image,
      pairs.text,
      temperature=temperature,
      image_id=pairs.ids.image,
      text_id=pairs.ids.text,
      num_pairs=n,
    )
    return pairs, solved.log_denominator

  return bank


def corrected_retrieval_evaluator(
  data: ImageTextSet,
  bank: MakeBank,
  methods: Sequence[Method],
  name: str = "",
  *,
  temperature: float | None = None,
) -> Evaluator:
  """Makes an evaluator of recall, corrected for hubs.

  Metrics are those of `retrieval_evaluator`, called `hubs_csls/...` and
  `hubs_zeta_0.5/...`, by method and strength.

  Args:
    data: The images and captions to retrieve.
    bank: What `make_bank` returned.
    methods: Each is "csls" (see `local_scaling`), "zeta" (`STRENGTH` times
      `popularity.zeta_of_unseen` is subtracted) or another strength of zeta.
    name: The name of the set, part of the names of metrics.
    temperature: That of the bank; zeta needs it.

  Raises:
    ValueError: If a method is unknown, or zeta has no temperature.
  """
  strengths = _strengths(methods, temperature)
  zeta_of = functools.partial(
    popularity.zeta_of_unseen, temperature=temperature
  )

  def evaluate(embed: Embed) -> Metrics:
    pairs, log_denominator = bank(embed)
    image, text = embed.image(data.image), embed.text(data.captions)

    def penalties(method) -> Sides:
      if method == CSLS:
        return Sides(
          image=local_scaling_of_unseen(image, pairs.text),
          text=local_scaling_of_unseen(text, pairs.image),
        )
      return Sides(
        image=zeta_of(image, pairs.text, log_denominator.text),
        text=zeta_of(text, pairs.image, log_denominator.image),
      )

    metrics = {}
    for method, strength in strengths.items():
      zeta = each(lambda x, s=strength: s * x, penalties(method))
      scores = scores_of(data, image, text, zeta)
      prefix = f"hubs_{method}/{name}/" if name else f"hubs_{method}/"
      metrics |= {f"{prefix}{key}": x for key, x in scores.items()}
    return metrics

  return evaluate


def local_scaling(
  sim: Float[np.ndarray, "*galleries queries candidates"], *, k: int = NEAREST
) -> Float[np.ndarray, "*galleries candidates"]:
  """Returns r_j of CSLS, the mean similarity to the k most similar queries.

  Cross-domain similarity local scaling ranks the candidates j of a query q by
  2 sim_qj - r_q - r_j, which is the order of

    sim_qj - r_j / 2

  Args:
    sim: Similarities of the bank's queries to the candidates.
    k: How many queries; all of them if there are fewer.

  Example:
    >>> sim = np.array([[0.9, 0.1], [0.5, 0.2], [0.1, 0.0]])
    >>> local_scaling(sim, k=2)
    array([0.7 , 0.15])

  Reference: Conneau et al., Word Translation Without Parallel Data, ICLR 2018.
  """
  k = min(k, sim.shape[-2])
  return np.partition(sim, -k, axis=-2)[..., -k:, :].mean(axis=-2)


def local_scaling_of_unseen(
  unseen: Float[np.ndarray, "unseen dim"],
  queries: Float[np.ndarray, "queries dim"],
  *,
  k: int = NEAREST,
) -> Float[np.ndarray, "unseen"]:
  """Computes `local_scaling` from embeddings, some candidates at a time.

  Args:
    unseen: Unit-norm embeddings of the candidates, texts (or images).
    queries: Unit-norm embeddings of the bank's images (or texts).
    k: How many queries; all of them if there are fewer.

  Example:
    >>> local_scaling_of_unseen(np.eye(2)[:1], np.eye(2), k=2)
    array([0.5])
  """
  dtype = np.result_type(np.float32, unseen, queries)
  unseen, queries = unseen.astype(dtype), queries.astype(dtype)
  size = max(1, CHUNK // len(queries))
  # Each candidate's similarities lie side by side in memory, which is faster.
  return np.concatenate(
    [
      local_scaling((unseen[rows] @ queries.T).T, k=k)
      for rows in progress.slices("candidates scaled", len(unseen), size)
    ]
  )


def _strengths(
  methods: Sequence[Method], temperature: float | None
) -> dict[str, float]:
  """Returns how much of its penalty each method subtracts, by name."""
  strengths = {}
  for method in methods:
    if method == CSLS:
      strengths[CSLS] = 0.5
      continue
    strength = STRENGTH if method == ZETA else method
    if isinstance(strength, str) or not 0 <= strength < math.inf:
      raise ValueError(
        f"a correction for hubs is {CSLS!r}, {ZETA!r} or a strength of zeta, "
        f"at least 0 and finite; got {method!r}"
      )
    if temperature is None:
      raise ValueError(
        f"the correction {method!r} needs a temperature, got None; {CSLS!r} "
        "needs none"
      )
    strengths[f"{ZETA}_{strength:g}"] = strength
  return strengths
