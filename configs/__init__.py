"""Building blocks of experiments: data without logic."""
