"""The command line, `nuclr VERB`. Python programs call `nuclr_jax.fit`."""

__all__: list[str] = []
