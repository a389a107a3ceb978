"""The ground floor: what a program, a finding and a model description are, and their text forms.

Everything here is a frozen value. Compiler and interpreter both stand on it and never import each other; it needs
numpy and pydantic, and never torch.
"""
