"""Why a text or a program is wrong, and changes to it that were tried."""
