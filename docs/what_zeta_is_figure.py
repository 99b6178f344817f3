"""Draws docs/figures/what_zeta_is.png from the rows of when_it_pays.

python docs/what_zeta_is_figure.py   # from the root of the repository
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from experiments.harness import command, runner  # noqa: E402
from experiments.when_it_pays import figures, plan  # noqa: E402
from experiments.when_it_pays.__main__ import STUDY  # noqa: E402
from experiments.when_it_pays.tables import of_part  # noqa: E402

OUTPUT = ROOT / "docs" / "figures" / "what_zeta_is.png"


def main() -> None:
  """Draws the figure."""
  options = command.parse_arguments(STUDY, ["--tables"])
  results = runner.results(STUDY, options)
  figure = figures.draw_table(of_part(results, plan.TABLE))
  figure.savefig(OUTPUT, bbox_inches="tight")


if __name__ == "__main__":
  main()
