"""Edits that may turn the text of a schedule into what its author meant. Each is tried before it is suggested.

Edits of constants come before edits of signs, and most small edits before large ones.
"""

from chimerac.compiler.diagnose.edits.listings import count_edits, listing_edits
from chimerac.compiler.diagnose.edits.text import Edit, edited
from chimerac.compiler.diagnose.edits.ticks import condition_edits, distant_tick_edits, tick_edits

__all__ = ["Edit", "condition_edits", "count_edits", "distant_tick_edits", "edited", "listing_edits", "tick_edits"]
