"""Edits of the text of an order that its author may have meant. Each is tried before it is suggested.

Edits of constants come before edits of signs, small edits before large ones.
"""

from chimerac.compiler.diagnose.edits.listings import of_counts, of_listing
from chimerac.compiler.diagnose.edits.text import Edit, edited
from chimerac.compiler.diagnose.edits.ticks import far_ticks, of_conditions, of_ticks

__all__ = ["Edit", "edited", "far_ticks", "of_conditions", "of_counts", "of_listing", "of_ticks"]
