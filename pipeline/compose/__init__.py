"""Pipelines, the stages that they join, and what observers are told."""
