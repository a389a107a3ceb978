"""Explanations of what is wrong in a text or a program, and changes to it that were tried."""
