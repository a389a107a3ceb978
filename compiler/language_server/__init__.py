"""The language server: findings, quick fixes, explanations, completion, definitions and the formatter (docs/editor.md)."""
