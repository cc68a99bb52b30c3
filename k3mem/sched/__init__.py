"""Plan and commit: the only code that sees tree and pool together."""
