"""What the other packages share: programs, findings, model descriptions, timelines, their text forms, and helpers.

Its modules need numpy and pydantic, never torch. Importing the package alone loads neither of the two.
"""
