"""The types that compiler and interpreter share: programs, findings, model descriptions, timelines, and their text forms.

It needs numpy and pydantic, never torch, and imports neither of the two.
"""
