"""The shared pieces that experiments are assembled from: data, no logic."""
