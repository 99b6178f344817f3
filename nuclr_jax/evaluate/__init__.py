"""Evaluation: pure functions of embeddings, and the driver."""
