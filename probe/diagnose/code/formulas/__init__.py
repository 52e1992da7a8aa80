"""Rules of formulas that a program writes out: losses, scores, mixtures."""
