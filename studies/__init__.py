"""What was done with the package, beside it: each study has a README, one script, tests and a log."""
