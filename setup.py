"""What is packaged; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
  packages=[*find_packages(include=["nuclr_jax*"]), "nuclr_jax.lab.configs"],
  package_dir={"nuclr_jax.lab.configs": "configs"},
)
