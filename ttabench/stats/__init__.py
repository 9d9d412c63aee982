"""Statistics of answers: metrics, standard errors, intervals and tests."""
