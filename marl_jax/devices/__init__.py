"""Where things lie: meshes, placement, what the compiler is told."""
