"""Changes to the text of an order that its author may have meant: candidates, each tried before one is suggested.

A constant is changed before a sign is turned round, and what changes little comes before what changes much.
"""

from chimerac.compiler.diagnose.edits.listings import of_counts, of_listing
from chimerac.compiler.diagnose.edits.text import Edit, edited
from chimerac.compiler.diagnose.edits.ticks import far_ticks, of_conditions, of_ticks

__all__ = ["Edit", "edited", "far_ticks", "of_conditions", "of_counts", "of_listing", "of_ticks"]
