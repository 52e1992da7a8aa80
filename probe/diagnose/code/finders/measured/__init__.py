"""What distances, errors and likelihoods are measured by, and taken for."""
