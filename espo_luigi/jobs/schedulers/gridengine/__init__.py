"""Grid Engine: submissions and directives (`submit`), and the answers of its commands (`parse`)."""
