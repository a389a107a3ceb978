"""The language server: findings, explanations, completion, definitions and the formatter, for editors (docs/editor.md)."""
