"""The table of OpenCLIP's models is what the towers of this library read."""

from experiments.parity import __main__ as parity


def test_the_table_of_the_guide():
  page = parity.GUIDE.read_text("utf-8")
  assert parity.with_table(page) == page
