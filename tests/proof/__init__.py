"""Long runs that test the verifier and the readers. `make proof` runs them and records the results in docs/proof.md."""
