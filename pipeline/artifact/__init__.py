"""Keep compiled programs: files, the engine cache, and new weights for programs."""
