"""Records about compiled programs: the agreement with eager PyTorch, costs of stages, profiles of calls."""
