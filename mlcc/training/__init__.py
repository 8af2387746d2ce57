"""Training: which values the forward pass saves for the backward pass, and which that one computes again."""
