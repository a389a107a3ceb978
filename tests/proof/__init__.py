"""The proof of the proof: long runs whose results stand in docs/proof.md. `make proof` runs them."""
