"""The types that compiler and interpreter share: programs, findings, model descriptions, timelines, and their text forms.

Its modules need numpy and pydantic, never torch. Importing the package alone loads neither of the two.
"""
