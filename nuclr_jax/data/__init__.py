"""Data: prepared sets with stable ids, tokenizers, the stream of batches."""
