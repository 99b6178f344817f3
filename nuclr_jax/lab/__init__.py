"""Everything that runs an experiment: data, models, training, reports."""

__all__: list[str] = []
