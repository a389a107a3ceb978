"""chimerac: pipeline schedules as text, compiled to verified programs.

Every package of the project is imported below this name.
chimera_ir, compiler, interpreter, models and schedules are links to the folders of the same names beside this one; an
installed package holds the folders themselves.
"""
