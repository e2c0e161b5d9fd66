"""Join stages to pipelines, and report what happens in them to observers."""
