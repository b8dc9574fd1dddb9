"""Sudoku: fill the grid so that no row, column or box repeats a digit."""
