"""Device meshes, array placement and compiler options."""
