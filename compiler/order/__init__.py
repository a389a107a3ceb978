"""spec -> program of tasks only: what each rank computes, one task after another (E3xx). One module per order form."""
