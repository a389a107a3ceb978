"""program -> program: tasks get their gradient sync (sync.py), transfers (transfers.py) and replicas (width.py)."""
