"""Join stages to pipelines, and report their events to observers."""
