"""Long runs that test the verifier and the readers of input. `make proof` records their results in docs/proof.md."""
