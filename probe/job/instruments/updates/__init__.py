"""Whether what backward computes reaches the parameters: from gradient to step to the next forward."""
