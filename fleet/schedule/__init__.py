"""Plan (pure), launch (the only importer of ray) and drive a campaign."""
