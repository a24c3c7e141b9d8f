"""Scripts with absl flags, one a main job."""
