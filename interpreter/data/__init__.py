"""Data: texts, tokenizers, prepared files and images, and the samples that a run reads from them (docs/data.md)."""
