"""syntax tree -> spec: names, types, parameters, requirements, sizes, placements (E2xx)."""
