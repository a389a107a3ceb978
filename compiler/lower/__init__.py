"""program -> program: adds gradient sync (sync.py), transfers (transfers.py) and replicas (width.py)."""
