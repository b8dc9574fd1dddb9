"""Plan-Path: find the shortest way through a grid with walls."""
